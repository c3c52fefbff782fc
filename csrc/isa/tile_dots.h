// Integer dot products of codes with M rows by AMX's tiles, for isa/dots.h where there are kLeastTileRows rows or more:
// sums of whole numbers, in any order the same bits.

#pragma once

#include <cstdint>

#include "isa/tiles.h"
#include "model/types.h"

namespace forerun::FORERUN_ISA {

template <int M>
inline void load_sums(const std::int32_t (&from)[kRowsAside][kTile], Wide (&out)[M]) {
    for (int m = 0; m < M; ++m) out[m] = {_mm512_load_si512(from[m])};
}

// Unsigned codes of 8 * STEPS inputs. All rows that lie side by side are multiplied, M are looked at.
template <int STEPS, int M, class CodesAt>
inline void sum_by_tiles(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    static_assert(STEPS == 4 || STEPS == 2);
    alignas(64) std::uint8_t lines[2 * STEPS][64];
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);
        _mm512_store_si512(lines[2 * i], codes.low.v);
        _mm512_store_si512(lines[2 * i + 1], codes.high.v);
    }
    alignas(64) std::int32_t sums[kRowsAside][kTile];
    FORERUN_TILE_ZERO(0);
    if constexpr (STEPS == 4) {
        FORERUN_TILE_LOAD(1, x, kGroup);
        FORERUN_TILE_LOAD(2, lines, 64);
        FORERUN_TILE_SIGNED_ROWS(0, 1, 2);
    } else {
        FORERUN_TILE_LOAD(3, x, kGroup);
        FORERUN_TILE_LOAD(4, lines, 64);
        FORERUN_TILE_SIGNED_ROWS(0, 3, 4);
    }
    FORERUN_TILE_STORE(0, sums, 64);
    load_sums(sums, out);
}

}  // namespace forerun::FORERUN_ISA
