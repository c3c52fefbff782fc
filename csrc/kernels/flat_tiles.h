// Flattened rows by AMX's tiles: nothing stands between the codes of a tile, so sums stay there to the end.

#pragma once

#include "kernels/codes.h"

namespace forerun::FORERUN_ISA {

// 8 lines of codes of 32 inputs: those of 8 bits as they lie, those of 4 bits in `lines`.
template <class Code>
inline const std::uint8_t* code_lines(const std::uint8_t* w, std::uint8_t (&lines)[8][64]) {
    if constexpr (Code::shift == 0) return w;
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
        const Bytes codes = load_bytes(w + 64 * line);
        _mm512_store_si512(lines[2 * line], low_codes(codes).v);
        _mm512_store_si512(lines[2 * line + 1], high_codes(codes).v);
    }
    return lines[0];
}

// Dots of M flattened rows with T tiles.
template <class Code, int M, int T>
inline void sum_flat_by_tiles(const Linear& linear, const std::uint8_t* w, const std::uint8_t* x,
                              Wide (&totals)[T][M]) {
    static_assert(T <= 2 && M <= kRowsAside);
    alignas(64) std::uint8_t lines[8][64];
    FORERUN_TILE_ZERO(0);
    if constexpr (T == 2) FORERUN_TILE_ZERO(5);
    for (int g = 0; g < linear.num_in / kGroup; ++g, w += Code::nbytes, x += kRowsAside * kGroup) {
        FORERUN_TILE_LOAD(1, x, kGroup);
        FORERUN_TILE_LOAD(2, code_lines<Code>(w, lines), 64);
        FORERUN_TILE_SIGNED_CODES(0, 1, 2);
        if constexpr (T == 2) {
            FORERUN_TILE_LOAD(6, code_lines<Code>(w + linear.tile_nbytes, lines), 64);
            FORERUN_TILE_SIGNED_CODES(5, 1, 6);
        }
    }
    StoredDots<M> dots[T];
    FORERUN_TILE_STORE(0, dots[0].sums, 64);
    if constexpr (T == 2) FORERUN_TILE_STORE(5, dots[1].sums, 64);
    for (int t = 0; t < T; ++t)
        for (int m = 0; m < M; ++m) totals[t][m] = dots[t][m];
}

}  // namespace forerun::FORERUN_ISA
