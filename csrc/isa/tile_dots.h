// Integer dot products of codes with M rows by AMX's tiles, in place of isa/dots.h: sums of whole numbers, in any
// order the same bits. Of fewer than kLeastTileRows rows by vectors.

#pragma once

#include <cstdint>

#include "isa/tiles.h"
#include "model/types.h"

namespace forerun::FORERUN_ISA {

inline constexpr int kCodeRowTile = kRowTile;
inline constexpr bool kTakesAnyRows = true;

// Inputs 0..3 and 4..7.
struct Eight {
    Bytes low, high;
};

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

template <int STEPS, int M, class CodesAt>
inline void sum_by_vectors(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    for (Wide& sum : out) sum = zero_wide();
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) {
            const std::int8_t* row = x + m * kGroup + 8 * i;
            add_dot(out[m], codes.low, row);
            add_dot(out[m], codes.high, row + 4);
        }
    }
}

template <int STEPS, int M, class CodesAt>
inline void sum_bytes(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    if constexpr (M >= kLeastTileRows)
        sum_by_tiles<STEPS>(codes_at, x, out);
    else
        sum_by_vectors<STEPS>(codes_at, x, out);
}

template <int STEPS, int DOTS, int M, class CodesAt>
inline void sum_codes(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    sum_bytes<STEPS>(codes_at, x, out);
}

}  // namespace forerun::FORERUN_ISA
