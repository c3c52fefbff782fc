// Integer dot products of the codes of 16 outputs with rows of activations, for every way codes lie in a tile;
// kernels/linear.h has the layouts.

#pragma once

#include "model/types.h"

namespace forerun::FORERUN_ISA {

// How the integer dot products of 32 inputs are taken, or of the 16 of `part`. `zero` is the code
// that means 0, for formats without a minimum; those with one have codes that are `offset` too large.
struct PlainCode {
    static constexpr int offset = 0;
    explicit PlainCode(const WeightFormat&) {}
};

// LOW bits of a code and TOP bits above them apart.
template <int LOW, int TOP, int GROUP, int ZERO = 0>
struct CodeSplit : PlainCode {
    using PlainCode::PlainCode;
    static constexpr int group = GROUP, nbytes = 64 * (LOW + TOP), zero = ZERO;
    // So many dots fit a Narrow.
    static constexpr int dots = LOW + TOP < 5 ? GROUP / 4 : LOW + TOP < 6 ? 4 : 2;
    static_assert(dots * 2 * 127 * ((1 << (LOW + TOP)) - 1) <= 32767);
    template <int M>
    static inline void dot(const std::uint8_t* w, int part, const std::int8_t* x, Wide (&out)[M]) {
        const auto codes_at = [=](int i) __attribute__((always_inline)) -> Eight {
            const int step = part * GROUP / 4 + 2 * i;
            return {four_at(w, step), four_at(w, step + 1)};
        };
        sum_codes<GROUP / 8, dots>(codes_at, x + part * GROUP, out);
    }
    // Those of inputs 4 * step .. 4 * step + 3.
    [[gnu::always_inline]] static inline Bytes four_at(const std::uint8_t* w, int step) {
        constexpr int lows = 8 / LOW;  // steps a line
        const Bytes low = bits(load_bytes(w + step / lows * 64), step % lows * LOW, (1 << LOW) - 1);
        if constexpr (TOP == 0) {
            return low;
        } else {
            constexpr int tops = 8 / TOP, mask = ((1 << TOP) - 1) << LOW;
            const Bytes line = load_bytes(w + 64 * LOW + step / tops * 64);
            const int place = step % tops * TOP;
            return either(low, place < LOW ? bits_up(line, LOW - place, mask)
                                           : bits(line, place - LOW, mask));
        }
    }
};
using Code2 = CodeSplit<2, 0, 16>;
using Ternary = CodeSplit<2, 0, 32, 1>;
using Code3 = CodeSplit<2, 1, 16, 4>;
using Code4 = CodeSplit<4, 0, 32, 8>;
using Code5 = CodeSplit<4, 1, 32, 16>;
using Code6 = CodeSplit<4, 2, 16, 32>;

// Codes of numbers in the format's table.
template <class Split>
struct CodeTable {
    static constexpr int group = Split::group, nbytes = Split::nbytes, zero = kByteZero;
    static constexpr bool is_table = true;
    Table values;
    explicit CodeTable(const WeightFormat& format) : values(table(format.values)) {}
    template <int M>
    inline void dot(const std::uint8_t* w, int part, const std::int8_t* x, Wide (&out)[M]) const {
        const auto codes_at = [&](int i) __attribute__((always_inline)) -> Eight {
            const int step = part * group / 4 + 2 * i;
            return {look_up(values, Split::four_at(w, step)), look_up(values, Split::four_at(w, step + 1))};
        };
        sum_bytes<group / 8>(codes_at, x + part * group, out);
    }
};
using Table3 = CodeTable<CodeSplit<2, 1, 32>>;
using Table3Pair = CodeTable<CodeSplit<2, 1, 16>>;
using Table4 = CodeTable<CodeSplit<4, 0, 32>>;
using Table4Pair = CodeTable<CodeSplit<4, 0, 16>>;

struct Code8 : PlainCode {
    using PlainCode::PlainCode;
    static constexpr int group = 32, nbytes = 512, zero = kByteZero, offset = kByteZero;
    template <int M>
    static inline void dot(const std::uint8_t* w, int, const std::int8_t* x, Wide (&out)[M]) {
        const auto codes_at = [w](int i) __attribute__((always_inline)) -> Eight {
            return {load_codes8(w + 128 * i), load_codes8(w + 128 * i + 64)};
        };
        sum_bytes<4>(codes_at, x, out);
    }
};
// Codes 0 to 255.
struct Unsigned8 : Code8 {
    using Code8::Code8;
    static constexpr int offset = kByteZero - 128;
};

// Signed codes times flattened rows: one integer sum over all inputs, exact in any order.
struct Flat4 {
    static constexpr int nbytes = 256, shift = kNibbleShift;
    static constexpr bool is_offset = kIsOffset4;
    template <int M, int T, int P>
    static inline void dot(const std::uint8_t* w, std::size_t tile_nbytes, const std::uint8_t* x,
                           Wide (&acc)[P][T][M]) {
#pragma GCC unroll 4
        for (int line = 0; line < 4; ++line) {
            Bytes low[T], high[T];
#pragma GCC unroll 2
            for (int t = 0; t < T; ++t) {
                const Bytes codes = load_bytes(w + t * tile_nbytes + 64 * line);
                low[t] = low_codes(codes);
                high[t] = high_codes(codes);
            }
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const std::uint8_t* row = x + m * kGroup + 8 * line;
                const Four first = four(row), second = four(row + 4);
#pragma GCC unroll 2
                for (int t = 0; t < T; ++t) {
                    add_flat4(acc[line % P][t][m], first, low[t]);
                    add_flat4(acc[line % P][t][m], second, high[t]);
                }
            }
        }
    }
};

struct Flat8 {
    static constexpr int nbytes = 512, shift = 0;
    static constexpr bool is_offset = kIsOffset8;
    template <int M, int T, int P>
    static inline void dot(const std::uint8_t* w, std::size_t tile_nbytes, const std::uint8_t* x,
                           Wide (&acc)[P][T][M]) {
#pragma GCC unroll 8
        for (int line = 0; line < 8; ++line) {
            Bytes codes[T];
            for (int t = 0; t < T; ++t) codes[t] = load_bytes(w + t * tile_nbytes + 64 * line);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const Four here = four(x + m * kGroup + 4 * line);
#pragma GCC unroll 2
                for (int t = 0; t < T; ++t) add_flat8(acc[line % P][t][m], here, codes[t]);
            }
        }
    }
};

}  // namespace forerun::FORERUN_ISA
