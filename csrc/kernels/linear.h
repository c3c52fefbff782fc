// Linear layers: 16 outputs at a time, a few rows at a time, each row exactly as if it were alone.
//
// A tile holds 16 outputs. Per 32 inputs it stores the codes, then the scales of 16 outputs, then
// (formats with a minimum or a zero point) those, so that one stream of bytes is read in order.
// Scales of 16 inputs stand side by side; Scales::Super has the factors of 256 inputs in front of
// them, Scales::Small those of the outputs, fp32, in front of all. A 64-byte line of codes holds, for
// each output, 4 bytes:
//   4 bits: inputs k..k+3 in the low nibbles, k+4..k+7 in the high ones; 4 lines
//   2 bits, 1 bit: likewise inputs k..k+3 in the lowest bits, and so on; 2 lines, 1 line
//   3, 5 and 6 bits: the low 2 or 4 bits, then the other 1 or 2 likewise
//   8 bits: inputs k..k+3, code + 128
// e4m3 numbers lie like floats, per 128 inputs behind 16 fp32 scales; the last may be fewer.
// Tiles for flattened rows begin with 16 fp32 scales and 16 int32 of -128 times the sum of an output's
// codes; their codes are signed, and nothing stands between them.
// Float formats store 16 outputs per input. The order of every float sum is part of the format:
// groups ascending, and for float formats even and odd inputs apart.

#pragma once

#include <cassert>

#include "kernels/codes.h"
#include "model/types.h"
#include "platform.h"

namespace forerun::FORERUN_ISA {

inline void prefetch(const std::uint8_t* p, int num_lines) {
    for (int i = 0; i < num_lines; ++i) __builtin_prefetch(p + platform::prefetch_nbytes + 64 * i);
}

// The groups of int8 rows that lie side by side, one after the other.
class RowGroups {
  public:
    RowGroups(const Rows& rows, int row)
        : codes_(rows.q + rows.first_group(row) * kGroup),
          scales_(rows.scale + rows.first_group(row)),
          sums_(rows.sum + rows.first_group(row)),
          half_sums_(rows.half_sum + 2 * rows.first_group(row)) {}

    const std::int8_t* codes() const { return codes_; }
    float scale(int m) const { return scales_[m]; }
    float sum(int m) const { return sums_[m]; }  // scale times the sum of codes
    std::int32_t half_sum(int m, int half) const { return half_sums_[2 * m + half]; }
    std::int32_t code_sum(int m) const { return half_sum(m, 0) + half_sum(m, 1); }
    void advance() {
        codes_ += kRowsAside * kGroup;
        scales_ += kRowsAside;
        sums_ += kRowsAside;
        half_sums_ += 2 * kRowsAside;
    }

  private:
    const std::int8_t* codes_;
    const float *scales_, *sums_;
    const std::int32_t* half_sums_;
};

// Integer codes times int8 rows: acc = acc + float(dot) * (scale * row scale), then + min * row
// sum, group by group. Where zero points are stored, min = scale * -zero, which fp32 holds exactly.
template <class Code, Scales SCALES>
struct IntegerTile {
    static constexpr int row_tile = kCodeRowTile;
    template <int M>
    static void sum(const Linear& linear, const std::uint8_t* w, const Rows& rows, int row,
                    F (&acc)[M]) {
        static_assert(Code::group == kGroup);
        constexpr int nbytes = Code::nbytes + scales_nbytes(SCALES);
        RowGroups groups(rows, row);
        for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
        const Code code(*linear.format);
        for (int g = 0; g < linear.num_in / kGroup; ++g, w += nbytes, groups.advance()) {
            Wide dots[M];
            prefetch(w, (nbytes + 63) / 64);
            code.dot(w, 0, groups.codes(), dots);
            const std::uint8_t* scales = w + Code::nbytes;
            F weight_scale;
            if constexpr (SCALES == Scales::Exponent)
                weight_scale = load_exponents(scales);
            else
                weight_scale = load(reinterpret_cast<const std::uint16_t*>(scales));
            if constexpr (has_pair(SCALES)) {
                F weight_min = load(reinterpret_cast<const std::uint16_t*>(scales + 32));
                if constexpr (SCALES == Scales::HalfZero) weight_min = mul(weight_scale, weight_min);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    Wide dot = dots[m];
                    if constexpr (Code::offset != 0) dot = add(dot, -Code::offset * groups.code_sum(m));
                    acc[m] = fma(to_float(dot), mul(weight_scale, splat(groups.scale(m))), acc[m]);
                    acc[m] = fma(weight_min, splat(groups.sum(m)), acc[m]);
                }
            } else {
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    Wide dot = dots[m];
                    if constexpr (Code::zero != 0) dot = add(dot, -Code::zero * groups.code_sum(m));
                    acc[m] = fma(to_float(dot), mul(weight_scale, splat(groups.scale(m))), acc[m]);
                }
            }
        }
    }
};

// The same with grids of their own: per 256 inputs fp16 factors of an output, then small whole numbers a group,
// scale = number * factor, which fp32 holds exactly; or e4m3 numbers, and a factor of the output for all of them.
template <class Code, Scales SCALES>
struct SuperTile {
    static constexpr int row_tile = kCodeRowTile;
    static constexpr int parts = kGroup / Code::group;
    static constexpr bool has_min = SCALES == Scales::SuperMin || SCALES == Scales::SuperNibbles;
    template <int M>
    static void sum(const Linear& linear, const std::uint8_t* w, const Rows& rows, int row,
                    F (&acc)[M]) {
        constexpr int nbytes = Code::nbytes + parts * scales_nbytes(SCALES);
        const int num_groups = linear.num_in / kGroup;
        RowGroups groups(rows, row);
        const Code code(*linear.format);
        for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
        F factor{}, min_factor{};
        if constexpr (SCALES == Scales::Small)
            factor = mul(load(reinterpret_cast<const float*>(w)), splat(256.0f * linear.format->step));
        w += head_nbytes(SCALES);
        for (int g = 0; g < num_groups; ++g, w += nbytes, groups.advance()) {
            if (is_super(SCALES) && g % 8 == 0) {
                factor = load(reinterpret_cast<const std::uint16_t*>(w));
                if constexpr (requires { Code::is_table; })
                    factor = mul(factor, splat(linear.format->step));
                if constexpr (has_min)
                    min_factor = load(reinterpret_cast<const std::uint16_t*>(w + 32));
                w += factors_nbytes(SCALES);
            }
            prefetch(w, (nbytes + 63) / 64);
#pragma GCC unroll 2
            for (int part = 0; part < parts; ++part) {
                Wide dots[M];
                code.dot(w, part, groups.codes(), dots);
                const std::uint8_t* at = w + Code::nbytes + part * scales_nbytes(SCALES);
                const F weight_scale = scales(at, factor);
                const F weight_min = has_min ? mul(minima(at), min_factor) : factor;
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    Wide dot = dots[m];
                    if constexpr (!has_min && Code::zero != 0)
                        dot = add(dot, -Code::zero * (parts == 1 ? groups.code_sum(m) : groups.half_sum(m, part)));
                    acc[m] = fma(to_float(dot), mul(weight_scale, splat(groups.scale(m))), acc[m]);
                    if constexpr (has_min) {
                        const float total = parts == 1 ? groups.sum(m)
                                                       : groups.scale(m) * static_cast<float>(groups.half_sum(m, part));
                        acc[m] = fma(weight_min, splat(total), acc[m]);
                    }
                }
            }
        }
        if constexpr (SCALES == Scales::Small)
            for (int m = 0; m < M; ++m) acc[m] = mul(acc[m], factor);
    }
    static F scales(const std::uint8_t* at, F factor) {
        if constexpr (SCALES == Scales::SuperAlone)
            return factor;
        else if constexpr (SCALES == Scales::Small)
            return load_e4m3(at);  // 256 times too small
        else if constexpr (SCALES == Scales::SuperSigned)
            return mul(load(reinterpret_cast<const std::int8_t*>(at)), factor);
        else
            return mul(SCALES == Scales::SuperNibbles ? load_low4(at) : load_bytes16(at), factor);
    }
    static F minima(const std::uint8_t* at) {
        return SCALES == Scales::SuperNibbles ? load_high4(at) : load_bytes16(at + 16);
    }
};

struct Float32 {
    using type = float;
    static F at(const float* p) { return load(p); }
};
struct Float16 {
    using type = std::uint16_t;
    static F at(const std::uint16_t* p) { return load(p); }
};
struct BFloat16 {
    using type = std::uint16_t;
    static F at(const std::uint16_t* p) { return load_bf16(p); }
};

template <class Format>
struct FloatTile {
    static constexpr int row_tile = kRowTile;
    template <int M>
    static void sum(const Linear& linear, const std::uint8_t* tile, const Rows& rows, int row,
                    F (&acc)[M]) {
        const auto* w = reinterpret_cast<const typename Format::type*>(tile);
        const std::size_t stride = static_cast<std::size_t>(linear.num_in);
        const float* x = rows.x + row * stride;
        F odd[M];
        for (int m = 0; m < M; ++m) acc[m] = odd[m] = splat(0.0f);
        for (int k = 0; k < linear.num_in; k += 2, w += 2 * kTile) {
            const F even_weight = Format::at(w), odd_weight = Format::at(w + kTile);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                acc[m] = fma(even_weight, splat(x[m * stride + k]), acc[m]);
                odd[m] = fma(odd_weight, splat(x[m * stride + k + 1]), odd[m]);
            }
        }
        for (int m = 0; m < M; ++m) acc[m] = add(acc[m], odd[m]);
    }
};

// e4m3 numbers: the sum of each group as above, then times its scale.
struct Float8Tile {
    static constexpr int row_tile = kRowTile;
    template <int M>
    static void sum(const Linear& linear, const std::uint8_t* w, const Rows& rows, int row,
                    F (&acc)[M]) {
        const std::size_t stride = static_cast<std::size_t>(linear.num_in);
        const float* x = rows.x + row * stride;
        for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
        for (int k = 0; k < linear.num_in;) {
            const F scale = mul(load(reinterpret_cast<const float*>(w)), splat(256.0f));
            w += kTile * sizeof(float);
            F even[M], odd[M];
            for (int m = 0; m < M; ++m) even[m] = odd[m] = splat(0.0f);
            const int left = linear.num_in - k, stop = k + (left < kFloat8Group ? left : kFloat8Group);
            for (; k < stop; k += 2, w += 2 * kTile) {
                prefetch(w, 1);
                const F even_weight = load_e4m3(w), odd_weight = load_e4m3(w + kTile);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    even[m] = fma(even_weight, splat(x[m * stride + k]), even[m]);
                    odd[m] = fma(odd_weight, splat(x[m * stride + k + 1]), odd[m]);
                }
            }
            for (int m = 0; m < M; ++m) acc[m] = fma(add(even[m], odd[m]), scale, acc[m]);
        }
    }
};

template <int M>
void put(const Linear& linear, int tile, F (&sum)[M], const Output& output, float* out) {
    for (int m = 0; m < M; ++m) {
        if (linear.bias) sum[m] = add(sum[m], load(linear.bias + tile * kTile));
        float* to = out + m * output.stride;
        store(to, output.accumulate ? fma(splat(output.multiplier), sum[m], load(to)) : sum[m]);
    }
}

template <int M, class Take>
[[gnu::always_inline]] inline void take_rest(int num_rows, const Take& take) {
    if constexpr (M > 0) {
        if (num_rows == M)
            take.template operator()<M>();
        else
            take_rest<M - 1>(num_rows, take);
    }
}

// Calls `take` for MOST rows at a time, then for those that are left: all at once, or 4 of them first. Inline, since
// compilers keep more in registers than where each number of rows has a function of its own.
template <int MOST, class Take>
[[gnu::always_inline]] inline void take_rows(int num_rows, const Take& take) {
    for (; num_rows >= MOST; num_rows -= MOST) take.template operator()<MOST>();
    if constexpr (MOST <= 4 || kTakesAnyRows)
        take_rest<MOST - 1>(num_rows, take);
    else
        take_rows<4>(num_rows, take);
}

template <class Tile>
void linear_tiles(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row,
                  int num_rows, const Output& output) {
    for (int i = 0; i < num_tiles; ++i) {
        const std::uint8_t* w =
            linear.tiles + static_cast<std::size_t>(tile + i) * linear.tile_nbytes;
        float* out = output.out + i * kTile;
        int m = row;
        take_rows<Tile::row_tile>(num_rows, [&]<int M>() __attribute__((always_inline)) {
            F acc[M];
            Tile::sum(linear, w, rows, m, acc);
            put(linear, tile + i, acc, output, out);
            m += M;
            out += M * output.stride;
        });
    }
}

// Dots of M flattened rows with T tiles, with so many sums that none waits for the one before.
template <class Code, int M, int T>
[[gnu::always_inline]] inline void sum_flat(const Linear& linear, const std::uint8_t* w,
                                            const std::uint8_t* x, Wide (&totals)[T][M]) {
    const int num_groups = linear.num_in / kGroup;
    constexpr int parts = M * T >= 8 ? 1 : M * T >= 3 ? 2 : 4;
    Wide acc[parts][T][M];
    for (auto& part : acc)
        for (auto& tile_sums : part)
            for (Wide& sum : tile_sums) sum = zero_wide();
    for (int g = 0; g < num_groups; ++g, w += Code::nbytes, x += kRowsAside * kGroup) {
        if constexpr (M < 8) prefetch(w, Code::nbytes / 64);
        Code::dot(w, linear.tile_nbytes, x, acc);
    }
    for (int t = 0; t < T; ++t)
        for (int m = 0; m < M; ++m) {
            totals[t][m] = acc[0][t][m];
            for (int p = 1; p < parts; ++p) totals[t][m] = add(totals[t][m], acc[p][t][m]);
        }
}

// What becomes of the dots of a flattened row with the 16 outputs of a tile, whose scales are at its head.
template <class Code>
[[gnu::always_inline]] inline F scale_flat(const Linear& linear, const std::uint8_t* head, const Rows& rows, int row,
                                           Wide total) {
    total = shift_down(total, Code::shift);
    if constexpr (Code::is_offset) total = add(total, load_wide(reinterpret_cast<const std::int32_t*>(head + 64)));
    const F sum = mul(to_float(total), load(reinterpret_cast<const float*>(head)));
    return linear.is_by_row() ? mul(sum, splat(rows.scale[rows.first_group(row)])) : sum;
}

// T tiles of M flattened rows.
template <class Code, int M, int T>
void flat_tile(const Linear& linear, int tile, const Rows& rows, int row, const Output& output,
               float* out) {
    const std::uint8_t* head = linear.tiles + static_cast<std::size_t>(tile) * linear.tile_nbytes;
    const std::uint8_t* w = head + head_nbytes(Scales::Channel);
    const auto* x = reinterpret_cast<const std::uint8_t*>(rows.q) + rows.first_group(row) * kGroup;
    Wide totals[T][M];
    sum_flat<Code>(linear, w, x, totals);
    for (int t = 0; t < T; ++t, head += linear.tile_nbytes, out += kTile) {
        F sum[M] = {};
        for (int m = 0; m < M; ++m) sum[m] = scale_flat<Code>(linear, head, rows, row + m, totals[t][m]);
        put(linear, tile + t, sum, output, out);
    }
}

template <class Code>
void flat_tiles(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row,
                int num_rows, const Output& output) {
    for (int i = 0, step; i < num_tiles; i += step) {
        // Few rows are read once each anyway, and one stream of weights is read faster.
        step = num_rows >= 8 && num_tiles - i >= kTilesAside ? kTilesAside : 1;
        float* out = output.out + i * kTile;
        int m = row;
        take_rows<kRowTile>(num_rows, [&]<int M>() {
            (step == kTilesAside ? flat_tile<Code, M, kTilesAside> : flat_tile<Code, M, 1>)(
                linear, tile + i, rows, m, output, out);
            m += M;
            out += M * output.stride;
        });
    }
}

// The rows must `lie_together`: codes of those behind the first one are read as its neighbours.
inline void linear(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row,
                   int num_rows, const Output& output) {
    assert(lie_together(row, num_rows));
    constexpr decltype(&forerun::FORERUN_ISA::linear) kernels[] = {
        // in the order of enum Tile
        linear_tiles<FloatTile<Float32>>,
        linear_tiles<FloatTile<Float16>>,
        linear_tiles<FloatTile<BFloat16>>,
        linear_tiles<Float8Tile>,
        linear_tiles<IntegerTile<Code4, Scales::Half>>,
        linear_tiles<IntegerTile<Code4, Scales::HalfMin>>,
        linear_tiles<IntegerTile<Code4, Scales::HalfZero>>,
        linear_tiles<SuperTile<Code4, Scales::SuperMin>>,
        linear_tiles<IntegerTile<Code5, Scales::Half>>,
        linear_tiles<IntegerTile<Code5, Scales::HalfMin>>,
        linear_tiles<SuperTile<Code5, Scales::SuperMin>>,
        linear_tiles<SuperTile<Code6, Scales::SuperSigned>>,
        linear_tiles<IntegerTile<Code8, Scales::Half>>,
        linear_tiles<IntegerTile<Unsigned8, Scales::HalfMin>>,
        linear_tiles<IntegerTile<Code8, Scales::HalfZero>>,
        linear_tiles<SuperTile<Ternary, Scales::SuperAlone>>,
        linear_tiles<SuperTile<Code2, Scales::SuperNibbles>>,
        linear_tiles<SuperTile<Code3, Scales::SuperSigned>>,
        linear_tiles<IntegerTile<Table4, Scales::Half>>,
        linear_tiles<SuperTile<Table4, Scales::SuperSigned>>,
        linear_tiles<SuperTile<Table3, Scales::SuperSigned>>,
        linear_tiles<SuperTile<Table3Pair, Scales::SuperSigned>>,
        linear_tiles<IntegerTile<Table4, Scales::Exponent>>,
        linear_tiles<SuperTile<Table4Pair, Scales::Small>>,
        flat_tiles<Flat4>,
        flat_tiles<Flat8>};
    kernels[static_cast<int>(linear.format->tile)](linear, tile, num_tiles, rows, row, num_rows,
                                                   output);
}

// Nothing but integer dot products of codes in registers, what the processor could do at most.
// Returns how many multiplications they are; `kept` keeps the compiler from leaving them out.
inline std::int64_t peak(int num_rounds, std::int32_t* kept) {
    constexpr int rows = 4, dots = 8;
    alignas(64) std::uint8_t codes[64];
    alignas(64) std::int8_t x[rows * dots * 4 + kTile];
    for (std::size_t i = 0; i < sizeof codes; ++i) codes[i] = static_cast<std::uint8_t>(i % 16);
    for (std::size_t i = 0; i < sizeof x; ++i) x[i] = static_cast<std::int8_t>(i);
    const Bytes w = load_bytes(codes);
    Wide total[rows];
    for (Wide& row : total) row = zero_wide();
    for (int round = 0; round < num_rounds; ++round) {
        const std::int8_t* at = x + round % kTile;  // another each time, or nothing is left to do
#pragma GCC unroll 4
        for (int m = 0; m < rows; ++m) {
            Narrow acc = first_dot(w, at + m * dots * 4);
#pragma GCC unroll 8
            for (int d = 1; d < dots; ++d) add_dot(acc, w, at + (m * dots + d) * 4);
            total[m] = add(total[m], widen(acc));
        }
    }
    F sum = splat(0.0f);
    for (const Wide& row : total) sum = add(sum, to_float(row));
    float lanes[kTile];
    store(lanes, sum);
    *kept = lanes[0] > 0.0f;
    return std::int64_t{num_rounds} * rows * dots * 4 * kTile;
}

// The same of floats.
inline std::int64_t float_peak(int num_rounds, std::int32_t* kept) {
    constexpr int sums = 6;
    F total[sums];
    for (F& sum : total) sum = splat(static_cast<float>(num_rounds));
    const F factor = splat(0.5f), one = splat(1.0f);
    for (int round = 0; round < num_rounds; ++round)
#pragma GCC unroll 6
        for (F& sum : total) sum = fma(sum, factor, one);
    F all = splat(0.0f);
    for (const F& sum : total) all = add(all, sum);
    *kept = sum(all) > 0.0f;
    return std::int64_t{num_rounds} * sums * kTile;
}

}  // namespace forerun::FORERUN_ISA
