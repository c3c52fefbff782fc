// Integer dot products of codes with M rows by AMX's tiles, for isa/dots.h where there are kLeastTileRows rows or more:
// sums of whole numbers, in any order the same bits.

#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "isa/tiles.h"
#include "model/types.h"

namespace forerun::FORERUN_ISA {

// Dots where tiles store them, in memory: the registers hold the float sums of 16 rows, and no more.
template <int M>
struct StoredDots {
    static constexpr int num_blocks = (M + kRowsAside - 1) / kRowsAside;
    alignas(64) std::int32_t sums[num_blocks][kRowsAside][kTile];

    Wide operator[](int m) const { return {_mm512_load_si512(sums[m / kRowsAside][m % kRowsAside])}; }
};
template <int M>
using Dots = std::conditional_t<M >= kLeastTileRows, StoredDots<M>, Wide[M]>;

// The codes of rows kGroup bytes apart, kRowsAside of them, and of as many `next` bytes further.
struct TwoBlocks {
    const std::int8_t* first;
    std::size_t next;

    TwoBlocks operator+(int nbytes) const { return {first + nbytes, next}; }
};
template <int M>
using CodedRows = std::conditional_t<(M > kRowsAside), TwoBlocks, const std::int8_t*>;

// Unsigned codes of 8 * STEPS inputs, unpacked once. All rows that lie side by side are multiplied, M are looked at.
template <int STEPS, int M, class CodesAt>
inline void sum_by_tiles(const CodesAt& codes_at, CodedRows<M> x, StoredDots<M>& out) {
    static_assert(STEPS == 4 || STEPS == 2);
    alignas(64) std::uint8_t lines[2 * STEPS][64];
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);
        _mm512_store_si512(lines[2 * i], codes.low.v);
        _mm512_store_si512(lines[2 * i + 1], codes.high.v);
    }
    const std::int8_t* first;
    if constexpr (M > kRowsAside)
        first = x.first;
    else
        first = x;
    FORERUN_TILE_ZERO(0);
    if constexpr (STEPS == 4) {
        FORERUN_TILE_LOAD(1, first, kGroup);
        FORERUN_TILE_LOAD(2, lines, 64);
        FORERUN_TILE_SIGNED_ROWS(0, 1, 2);
    } else {
        FORERUN_TILE_LOAD(3, first, kGroup);
        FORERUN_TILE_LOAD(4, lines, 64);
        FORERUN_TILE_SIGNED_ROWS(0, 3, 4);
    }
    FORERUN_TILE_STORE(0, out.sums[0], 64);
    if constexpr (M > kRowsAside) {
        FORERUN_TILE_ZERO(5);
        if constexpr (STEPS == 4) {
            FORERUN_TILE_LOAD(7, first + x.next, kGroup);
            FORERUN_TILE_SIGNED_ROWS(5, 7, 2);
        } else {
            FORERUN_TILE_LOAD(3, first + x.next, kGroup);
            FORERUN_TILE_SIGNED_ROWS(5, 3, 4);
        }
        FORERUN_TILE_STORE(5, out.sums[1], 64);
    }
}

template <int STEPS, int DOTS, int M, class CodesAt>
inline void sum_codes(const CodesAt& codes_at, CodedRows<M> x, StoredDots<M>& out) {
    sum_by_tiles<STEPS>(codes_at, x, out);
}
template <int STEPS, int M, class CodesAt>
inline void sum_bytes(const CodesAt& codes_at, CodedRows<M> x, StoredDots<M>& out) {
    sum_by_tiles<STEPS>(codes_at, x, out);
}

}  // namespace forerun::FORERUN_ISA
