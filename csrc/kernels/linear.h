// Linear layers: 16 outputs at a time, a few rows at a time, each row exactly as if it were alone.
//
// A tile holds 16 outputs. Per group of inputs it stores the codes, then 16 fp16 scales, then
// (formats with a minimum or a zero point) 16 fp16 of those, so that one stream of bytes is read in
// order. A 64-byte line of codes holds, for each output, 4 bytes:
//   4 bits: inputs k..k+3 in the low nibbles, k+4..k+7 in the high ones; 4 lines a group of 32
//   5 and 6 bits: the low 4 bits likewise; then lines of 2-bit tops, each the tops of 16 inputs
//   8 bits: inputs k..k+3, code + 128
// Tiles for flattened rows begin with 16 fp32 scales and 16 int32 of -128 times the sum of an output's
// codes; their codes are signed, and nothing stands between them.
// Float formats store 16 outputs per input. The order of every float sum is part of the format:
// groups ascending, and for float formats even and odd inputs apart.

#pragma once

#include "model/types.h"

namespace forerun::FORERUN_ISA {

// Far enough ahead to hide memory, near enough to stay in the first-level cache.
inline constexpr int kPrefetch = 7168;

inline void prefetch(const std::uint8_t* p, int num_lines) {
    for (int i = 0; i < num_lines; ++i) __builtin_prefetch(p + kPrefetch + 64 * i);
}

// How one group's integer dot products are taken. `zero` is the code that means 0, for formats
// without a minimum.
struct Code4 {
    static constexpr int group = 32, nbytes = 256, zero = 8;
    template <int M>
    static inline void dot(const std::uint8_t* w, const std::int8_t* x, Wide (&out)[M]) {
        Narrow acc[M];
#pragma GCC unroll 4
        for (int line = 0; line < 4; ++line) {
            const Bytes codes = load_bytes(w + 64 * line), lo = bits(codes, 0, 15),
                        hi = bits(codes, 4, 15);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const std::int8_t* row = x + m * kGroup + 8 * line;
                if (line == 0)
                    acc[m] = first_dot(lo, row);
                else
                    add_dot(acc[m], lo, row);
                add_dot(acc[m], hi, row + 4);
            }
        }
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) out[m] = widen(acc[m]);
    }
};

template <int GROUP, int DOTS, int ZERO>
struct CodeSplit {  // 4 low bits and 2 top bits apart; DOTS of them fit a Narrow
    static constexpr int group = GROUP, nbytes = GROUP * 12, zero = ZERO;
    template <int M>
    static inline void dot(const std::uint8_t* w, const std::int8_t* x, Wide (&out)[M]) {
        Narrow acc[M];
#pragma GCC unroll 8
        for (int step = 0; step < GROUP / 4; ++step) {  // inputs 4 * step .. 4 * step + 3
            const Bytes low = bits(load_bytes(w + 64 * (step / 2)), 4 * (step % 2), 15);
            const Bytes tops = load_bytes(w + 8 * GROUP + 64 * (step / 4));
            const int place = 2 * (step % 4);
            const Bytes top =
                place < 4 ? bits_up(tops, 4 - place, 0x30) : bits(tops, place - 4, 0x30);
            const Bytes codes = either(low, top);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                const std::int8_t* row = x + m * kGroup + 4 * step;
                if (step % DOTS == 0)
                    acc[m] = first_dot(codes, row);
                else
                    add_dot(acc[m], codes, row);
                if (step == DOTS - 1)
                    out[m] = widen(acc[m]);
                else if (step % DOTS == DOTS - 1)
                    out[m] = add(out[m], widen(acc[m]));
            }
        }
    }
};
using Code5 = CodeSplit<32, 4, 16>;
using Code6 = CodeSplit<16, 2, 32>;

struct Code8 {
    static constexpr int group = 32, nbytes = 512, zero = kByteZero;
    template <int M>
    static inline void dot(const std::uint8_t* w, const std::int8_t* x, Wide (&out)[M]) {
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) out[m] = zero_wide();
#pragma GCC unroll 8
        for (int line = 0; line < 8; ++line) {
            const Bytes codes = load_codes8(w + 64 * line);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) add_dot8(out[m], codes, x + m * kGroup + 4 * line);
        }
    }
};

// Integer codes times int8 rows: acc = acc + float(dot) * (scale * row scale), then + min * row
// sum, group by group. Where zero points are stored, min = scale * -zero, which fp32 holds exactly.
template <class Code, Scales SCALES>
struct IntegerTile {
    template <int M>
    static void sum(const Linear& linear, const std::uint8_t* w, const Rows& rows, int row,
                    F (&acc)[M]) {
        constexpr int nbytes = Code::nbytes + (has_pair(SCALES) ? 64 : 32);
        constexpr int parts = kGroup / Code::group;  // of a group of activations
        const std::size_t first = rows.first_group(row);
        const std::int8_t* x = rows.q + first * kGroup;
        const float *scale = rows.scale + first, *sum = rows.sum + first;
        const std::int32_t* half_sum = rows.half_sum + 2 * first;
        for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
        for (int i = 0; i < linear.num_in / Code::group; ++i, w += nbytes) {
            const int part = i % parts;
            Wide dot[M];
            prefetch(w, (nbytes + 63) / 64);
            Code::dot(w, x + part * Code::group, dot);
            const F weight_scale = load(reinterpret_cast<const std::uint16_t*>(w + Code::nbytes));
            if constexpr (has_pair(SCALES)) {
                F weight_min = load(reinterpret_cast<const std::uint16_t*>(w + Code::nbytes + 32));
                if constexpr (SCALES == Scales::HalfZero) weight_min = mul(weight_scale, weight_min);
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    acc[m] = fma(to_float(dot[m]), mul(weight_scale, splat(scale[m])), acc[m]);
                    acc[m] = fma(weight_min, splat(sum[m]), acc[m]);
                }
            } else {
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m) {
                    if constexpr (Code::zero != 0) {
                        const std::int32_t* halves = half_sum + 2 * m;
                        const int total = parts == 1 ? halves[0] + halves[1] : halves[part];
                        dot[m] = add(dot[m], -Code::zero * total);
                    }
                    acc[m] = fma(to_float(dot[m]), mul(weight_scale, splat(scale[m])), acc[m]);
                }
            }
            if (part < parts - 1) continue;
            x += kRowsAside * kGroup;
            scale += kRowsAside;
            sum += kRowsAside;
            half_sum += 2 * kRowsAside;
        }
    }
};

// Q4_K's own grid: per 256 inputs two fp16 factors an output, then per group of 32 its codes, a
// byte of scale and a byte of minimum an output. scale = byte * factor is exact in fp32.
struct SuperTile {
    template <int M>
    static void sum(const Linear& linear, const std::uint8_t* w, const Rows& rows, int row,
                    F (&acc)[M]) {
        constexpr int nbytes = Code4::nbytes + 32;
        const int num_groups = linear.num_in / kGroup;
        const std::size_t first = rows.first_group(row);
        const std::int8_t* x = rows.q + first * kGroup;
        const float *scale = rows.scale + first, *sum = rows.sum + first;
        for (int m = 0; m < M; ++m) acc[m] = splat(0.0f);
        F factor{}, min_factor{};
        for (int g = 0; g < num_groups; ++g, w += nbytes) {
            if (g % 8 == 0) {
                factor = load(reinterpret_cast<const std::uint16_t*>(w));
                min_factor = load(reinterpret_cast<const std::uint16_t*>(w + 32));
                w += 64;
            }
            Wide dot[M];
            prefetch(w, 5);
            Code4::dot(w, x, dot);
            const F weight_scale = mul(load_bytes16(w + Code4::nbytes), factor);
            const F weight_min = mul(load_bytes16(w + Code4::nbytes + 16), min_factor);
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
                acc[m] = fma(to_float(dot[m]), mul(weight_scale, splat(scale[m])), acc[m]);
                acc[m] = fma(weight_min, splat(sum[m]), acc[m]);
            }
            x += kRowsAside * kGroup;
            scale += kRowsAside;
            sum += kRowsAside;
        }
    }
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

template <int M>
void put(const Linear& linear, int tile, F (&sum)[M], const Output& output, float* out) {
    for (int m = 0; m < M; ++m) {
        if (linear.bias) sum[m] = add(sum[m], load(linear.bias + tile * kTile));
        float* to = out + m * output.stride;
        store(to, output.accumulate ? fma(splat(output.multiplier), sum[m], load(to)) : sum[m]);
    }
}

template <class Tile, int M>
void linear_tile(const Linear& linear, int tile, const Rows& rows, int row, const Output& output,
                 float* out) {
    const std::uint8_t* w = linear.tiles + static_cast<std::size_t>(tile) * linear.tile_nbytes;
    F acc[M] = {};
    Tile::sum(linear, w, rows, row, acc);
    put(linear, tile, acc, output, out);
}

template <class Tile>
void linear_tiles(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row,
                  int num_rows, const Output& output) {
    for (int i = 0; i < num_tiles; ++i) {
        float* out = output.out + i * kTile;
        int m = row;
        const int stop = row + num_rows;
        if constexpr (kRowTile >= 8)
            for (; stop - m >= 8; m += 8, out += 8 * output.stride)
                linear_tile<Tile, 8>(linear, tile + i, rows, m, output, out);
        for (; stop - m >= 4; m += 4, out += 4 * output.stride)
            linear_tile<Tile, 4>(linear, tile + i, rows, m, output, out);
        if (stop - m == 3) linear_tile<Tile, 3>(linear, tile + i, rows, m, output, out);
        if (stop - m == 2) linear_tile<Tile, 2>(linear, tile + i, rows, m, output, out);
        if (stop - m == 1) linear_tile<Tile, 1>(linear, tile + i, rows, m, output, out);
    }
}

// T tiles of M flattened rows, with so many sums that none waits for the one before.
template <class Code, int M, int T>
void flat_tile(const Linear& linear, int tile, const Rows& rows, int row, const Output& output,
               float* out) {
    const std::uint8_t* head = linear.tiles + static_cast<std::size_t>(tile) * linear.tile_nbytes;
    const std::uint8_t* w = head + kFlatHead;
    const auto* x = reinterpret_cast<const std::uint8_t*>(rows.q) + rows.first_group(row) * kGroup;
    constexpr int parts = M * T >= 8 ? 1 : M * T >= 3 ? 2 : 4;
    Wide acc[parts][T][M];
    for (auto& part : acc)
        for (auto& tile_sums : part)
            for (Wide& sum : tile_sums) sum = zero_wide();
    for (int g = 0; g < linear.num_in / kGroup; ++g, w += Code::nbytes) {
        if constexpr (M < 8) prefetch(w, Code::nbytes / 64);
        Code::dot(w, linear.tile_nbytes, x, acc);
        x += kRowsAside * kGroup;
    }
    for (int t = 0; t < T; ++t, head += linear.tile_nbytes, out += kTile) {
        const F scale = load(reinterpret_cast<const float*>(head));
        const Wide offset = load_wide(reinterpret_cast<const std::int32_t*>(head + 64));
        F sum[M] = {};
        for (int m = 0; m < M; ++m) {
            Wide total = acc[0][t][m];
            for (int p = 1; p < parts; ++p) total = add(total, acc[p][t][m]);
            total = shift_down(total, Code::shift);
            if constexpr (Code::is_offset) total = add(total, offset);
            sum[m] = mul(to_float(total), scale);
        }
        put(linear, tile + t, sum, output, out);
    }
}

template <class Code>
void flat_tiles(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row,
                int num_rows, const Output& output) {
    const int stop = row + num_rows;
    for (int i = 0, step; i < num_tiles; i += step) {
        // Few rows are read once each anyway, and one stream of weights is read faster.
        step = num_rows >= 8 && num_tiles - i >= kTilesAside ? kTilesAside : 1;
        float* out = output.out + i * kTile;
        int m = row;
        if constexpr (kRowTile >= 8)
            for (; stop - m >= 8; m += 8, out += 8 * output.stride)
                (step == kTilesAside ? flat_tile<Code, 8, kTilesAside> : flat_tile<Code, 8, 1>)(
                    linear, tile + i, rows, m, output, out);
        const auto rest = [&]<int M>() {
            (step == kTilesAside ? flat_tile<Code, M, kTilesAside> : flat_tile<Code, M, 1>)(
                linear, tile + i, rows, m, output, out);
            m += M;
            out += M * output.stride;
        };
        while (stop - m >= 4) rest.template operator()<4>();
        if (stop - m == 3) rest.template operator()<3>();
        if (stop - m == 2) rest.template operator()<2>();
        if (stop - m == 1) rest.template operator()<1>();
    }
}

inline void linear(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row,
                   int num_rows, const Output& output) {
    constexpr decltype(&forerun::FORERUN_ISA::linear) kernels[] = {
        // in the order of enum Tile
        linear_tiles<FloatTile<Float32>>,
        linear_tiles<FloatTile<Float16>>,
        linear_tiles<FloatTile<BFloat16>>,
        linear_tiles<IntegerTile<Code4, Scales::Half>>,
        linear_tiles<IntegerTile<Code4, Scales::HalfMin>>,
        linear_tiles<IntegerTile<Code4, Scales::HalfZero>>,
        linear_tiles<SuperTile>,
        linear_tiles<IntegerTile<Code5, Scales::Half>>,
        linear_tiles<IntegerTile<Code5, Scales::HalfMin>>,
        linear_tiles<IntegerTile<Code6, Scales::Half>>,
        linear_tiles<IntegerTile<Code8, Scales::Half>>,
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

}  // namespace forerun::FORERUN_ISA
