// Attention's whole numbers by AMX's tiles: int8 keys and values lie as codes of linear layers do.

#pragma once

#include <cstring>

#include "isa/tile_dots.h"
#include "model/types.h"

namespace forerun::FORERUN_ISA {

// Dots of P queries with B blocks of 16 keys `block` bytes apart, of `count` numbers from `first` on, 32 at most.
template <class Query, int P, int B>
inline void dot_keys(const Query* q, int first, int count, const std::uint8_t* keys, std::size_t block,
                     StoredDots<P> (&out)[B]) {
    alignas(64) std::int8_t rows[kRowsAside][kGroup] = {};  // zeros meet what lies behind fewer numbers
    for (int p = 0; p < P; ++p) std::memcpy(rows[p], q[p].codes + first, static_cast<std::size_t>(count));
    FORERUN_TILE_LOAD(1, rows, kGroup);
    for (int b = 0; b < B; ++b) {
        FORERUN_TILE_ZERO(0);
        FORERUN_TILE_LOAD(2, keys + b * block, 64);
        FORERUN_TILE_SIGNED_ROWS(0, 1, 2);
        FORERUN_TILE_STORE(0, out[b].sums, 64);
    }
}

// Dots of P pairs' weights of a chunk, kChunk bytes apart, with 16 outputs of its values, `stride` bytes for 4 rows.
template <int P>
inline void dot_values(const std::uint8_t* weights, const std::uint8_t* values, std::size_t stride,
                       StoredDots<P>& out) {
    static_assert(kChunk == 2 * kGroup);
    FORERUN_TILE_ZERO(0);
    for (int half = 0; half < 2; ++half) {
        FORERUN_TILE_LOAD(1, weights + half * kGroup, kChunk);
        FORERUN_TILE_LOAD(2, values + half * 8 * stride, stride);
        FORERUN_TILE_SIGNED_CODES(0, 1, 2);
    }
    FORERUN_TILE_STORE(0, out.sums, 64);
}

}  // namespace forerun::FORERUN_ISA
