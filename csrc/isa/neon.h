// 16 lanes on AArch64 with the dot products of ARMv8.4 (dotprod): four 128-bit registers. With i8mm (ARMv8.6) pairs
// of rows are multiplied by pairs of outputs; whole numbers are exact, so a row's result does not depend on its partner.

#pragma once

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "model/types.h"

// Left to themselves, compilers make calls of what is used often, and pass registers through memory.
#define FORERUN_INLINE [[gnu::always_inline]] inline

namespace forerun::FORERUN_ISA {

inline constexpr int kRowTile = 4;
inline constexpr bool kTakesAnyRows = false;  // 5 rows are 4, which i8mm takes in pairs, and 1

struct F {
    float32x4_t v[4];
};

template <class Op>
FORERUN_INLINE F each(Op op) {
    return {op(0), op(1), op(2), op(3)};
}

FORERUN_INLINE F splat(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {v, v, v, v};
}
FORERUN_INLINE F load(const float* p) {
    return each([&](int i) { return vld1q_f32(p + 4 * i); });
}
FORERUN_INLINE void store(float* p, F x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
FORERUN_INLINE F load(const std::uint16_t* p) {  // fp16
    return each([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
FORERUN_INLINE void store(std::uint16_t* p, F x) {
    for (int i = 0; i < 4; ++i) vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i])));
}
FORERUN_INLINE F load_bf16(const std::uint16_t* p) {
    return each([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}
struct Widened {
    uint32x4_t v[4];
};
FORERUN_INLINE Widened words_of(uint8x16_t x) {  // a word for each byte
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_high_u8(x);
    return {vmovl_u16(vget_low_u16(low)), vmovl_high_u16(low), vmovl_u16(vget_low_u16(high)),
            vmovl_high_u16(high)};
}
FORERUN_INLINE F float_bytes(uint8x16_t x) {  // 0..255
    const Widened words = words_of(x);
    return each([&](int i) { return vcvtq_f32_u32(words.v[i]); });
}
FORERUN_INLINE F load_bytes16(const std::uint8_t* p) { return float_bytes(vld1q_u8(p)); }
FORERUN_INLINE F load_exponents(const std::uint8_t* p) {  // 2^(byte - 128)
    const Widened e = words_of(vld1q_u8(p));
    return each([&](int i) {
        const uint32x4_t small =
            vshlq_u32(vdupq_n_u32(0x200000), vreinterpretq_s32_u32(e.v[i]));
        const uint32x4_t large = vshlq_n_u32(vsubq_u32(e.v[i], vdupq_n_u32(1)), 23);
        return vreinterpretq_f32_u32(vbslq_u32(vcltq_u32(e.v[i], vdupq_n_u32(2)), small, large));
    });
}
FORERUN_INLINE F load_e4m3(const std::uint8_t* p) {  // as fp16, 256 times too small
    return each([&](int i) {
        std::uint32_t four;
        __builtin_memcpy(&four, p + 4 * i, 4);
        const int16x8_t x = vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four)));
        const int16x4_t halves = vand_s16(vshl_n_s16(vget_low_s16(x), 7), vdup_n_s16(-0x4080));
        return vcvt_f32_f16(vreinterpret_f16_s16(halves));
    });
}
FORERUN_INLINE F load(const std::int8_t* p) {
    const int8x16_t x = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
}
FORERUN_INLINE F load_low4(const std::uint8_t* p) {  // 16 numbers 0..15
    return float_bytes(vandq_u8(vld1q_u8(p), vdupq_n_u8(15)));
}
FORERUN_INLINE F load_high4(const std::uint8_t* p) { return float_bytes(vshrq_n_u8(vld1q_u8(p), 4)); }

FORERUN_INLINE F add(F x, F y) {
    return each([&](int i) { return vaddq_f32(x.v[i], y.v[i]); });
}
FORERUN_INLINE F sub(F x, F y) {
    return each([&](int i) { return vsubq_f32(x.v[i], y.v[i]); });
}
FORERUN_INLINE F mul(F x, F y) {
    return each([&](int i) { return vmulq_f32(x.v[i], y.v[i]); });
}
FORERUN_INLINE F div(F x, F y) {
    return each([&](int i) { return vdivq_f32(x.v[i], y.v[i]); });
}
FORERUN_INLINE F fma(F x, F y, F z) {
    return each([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); });
}
FORERUN_INLINE float32x4_t larger(float32x4_t x, float32x4_t y) {  // vmaxq_f32 is NaN if either is
    return vbslq_f32(vcgtq_f32(x, y), x, y);
}
FORERUN_INLINE F max(F x, F y) {  // y if either is NaN
    return each([&](int i) { return larger(x.v[i], y.v[i]); });
}
FORERUN_INLINE F min(F x, F y) {
    return each([&](int i) { return vbslq_f32(vcltq_f32(x.v[i], y.v[i]), x.v[i], y.v[i]); });
}
FORERUN_INLINE F abs(F x) {
    return each([&](int i) { return vabsq_f32(x.v[i]); });
}
FORERUN_INLINE F round(F x) {  // to the nearest integer, ties to even
    return each([&](int i) { return vrndnq_f32(x.v[i]); });
}
FORERUN_INLINE F pow2(F n) {  // 2^n for whole n in -127..127, 0 for -127
    return each([&](int i) {
        const int32x4_t word = vaddq_s32(vcvtq_s32_f32(n.v[i]), vdupq_n_s32(127));
        return vreinterpretq_f32_s32(vshlq_n_s32(word, 23));
    });
}
// A bit for every lane that is not below the limit.
FORERUN_INLINE unsigned not_below(F x, float limit) {
    const float32x4_t bound = vdupq_n_f32(limit);
    const int32x4_t places = {0, 1, 2, 3};
    unsigned below = 0;
    for (int i = 0; i < 4; ++i) {
        const uint32x4_t lanes = vandq_u32(vcltq_f32(x.v[i], bound), vdupq_n_u32(1));
        below |= vaddvq_u32(vshlq_u32(lanes, places)) << (4 * i);
    }
    return below ^ 0xFFFFu;
}

// Halving tree: lane i + lane i+8, then +4, +2, +1, on every instruction set.
FORERUN_INLINE float sum(F x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.v[0], x.v[2]), vaddq_f32(x.v[1], x.v[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
template <int Distance>
FORERUN_INLINE F swap_lanes(F x) {  // lane i becomes lane i ^ Distance, of 1, 2, 4 and 8
    return each([&](int i) {
        if constexpr (Distance == 1) return vrev64q_f32(x.v[i]);
        if constexpr (Distance == 2) return vextq_f32(x.v[i], x.v[i], 2);
        return x.v[i ^ Distance / 4];
    });
}
FORERUN_INLINE float largest(F x) {
    const float32x4_t four = larger(larger(x.v[0], x.v[2]), larger(x.v[1], x.v[3]));
    const float32x4_t two = larger(four, vextq_f32(four, four, 2));
    return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
}

// Rounds 16 floats within -127..127 to int8, stores them and returns their sum.
FORERUN_INLINE int store_int8(std::int8_t* p, F x) {
    int32x4_t w[4];
    for (int i = 0; i < 4; ++i) w[i] = vcvtnq_s32_f32(x.v[i]);
    const int16x8_t low = vcombine_s16(vmovn_s32(w[0]), vmovn_s32(w[1])),
                    high = vcombine_s16(vmovn_s32(w[2]), vmovn_s32(w[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
    return vaddlvq_s16(vaddq_s16(low, high));
}

// Rounds 16 floats within 0..255 to bytes and stores them.
FORERUN_INLINE void store_uint8(std::uint8_t* p, F x) {
    uint32x4_t w[4];
    for (int i = 0; i < 4; ++i) w[i] = vcvtnq_u32_f32(x.v[i]);
    const uint16x8_t low = vcombine_u16(vmovn_u32(w[0]), vmovn_u32(w[1])),
                     high = vcombine_u16(vmovn_u32(w[2]), vmovn_u32(w[3]));
    vst1q_u8(p, vcombine_u8(vmovn_u16(low), vmovn_u16(high)));
}

// --- integer dot products: 16 outputs, 4 bytes of each ---

struct Bytes {
    uint8x16_t v[4];  // of 4 outputs each
};
template <class Op>
FORERUN_INLINE Bytes each_byte(Op op) {
    return {op(0), op(1), op(2), op(3)};
}
FORERUN_INLINE Bytes load_bytes(const std::uint8_t* p) {
    return each_byte([&](int i) { return vld1q_u8(p + 16 * i); });
}
FORERUN_INLINE Bytes bits(Bytes x, int shift, int mask) {  // (x >> shift) & mask
    const uint8x16_t m = vdupq_n_u8(static_cast<std::uint8_t>(mask));
    const bool is_top = mask == 0xFF >> shift;
    return each_byte([&](int i) { return is_top ? x.v[i] >> shift : (x.v[i] >> shift) & m; });
}
FORERUN_INLINE Bytes bits_up(Bytes x, int shift, int mask) {  // (x << shift) & mask
    const uint8x16_t m = vdupq_n_u8(static_cast<std::uint8_t>(mask));
    return each_byte([&](int i) { return (x.v[i] << shift) & m; });
}
FORERUN_INLINE Bytes either(Bytes x, Bytes y) {
    return each_byte([&](int i) { return vorrq_u8(x.v[i], y.v[i]); });
}

struct Wide {
    int32x4_t v[4];
};
FORERUN_INLINE Wide zero_wide() {
    const int32x4_t zero = vdupq_n_s32(0);
    return {zero, zero, zero, zero};
}
FORERUN_INLINE Wide add(Wide x, Wide y) {
    for (int i = 0; i < 4; ++i) x.v[i] = vaddq_s32(x.v[i], y.v[i]);
    return x;
}
FORERUN_INLINE Wide add(Wide x, std::int32_t y) {
    for (auto& lanes : x.v) lanes = vaddq_s32(lanes, vdupq_n_s32(y));
    return x;
}
FORERUN_INLINE F to_float(Wide x) {
    return each([&](int i) { return vcvtq_f32_s32(x.v[i]); });
}

// 4 bytes of a row, for each output.
FORERUN_INLINE int8x16_t splat4(const void* x) {
    std::int32_t word;
    __builtin_memcpy(&word, x, 4);
    return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
// Codes below 128 are signed bytes as well.
FORERUN_INLINE void dot4(Wide& acc, Bytes w, int8x16_t x) {
    for (int i = 0; i < 4; ++i)
        acc.v[i] = vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), x);
}
using Narrow = Wide;
FORERUN_INLINE Narrow first_dot(Bytes w, const std::int8_t* x) {
    Narrow acc = zero_wide();
    dot4(acc, w, splat4(x));
    return acc;
}
FORERUN_INLINE void add_dot(Narrow& acc, Bytes w, const std::int8_t* x) { dot4(acc, w, splat4(x)); }
FORERUN_INLINE Wide widen(Narrow x) { return x; }

// 8-bit codes, code + 128 stored. Their dots are those of codes + kByteZero.
inline constexpr int kByteZero = 0;
FORERUN_INLINE Bytes load_codes8(const std::uint8_t* p) {
    const Bytes w = load_bytes(p);
    return each_byte([&](int i) { return veorq_u8(w.v[i], vdupq_n_u8(128)); });
}

FORERUN_INLINE void add_dot8(Wide& acc, Bytes w, const std::int8_t* x) { add_dot(acc, w, x); }

// 16 signed numbers that codes stand for; looked up they are like 8-bit codes.
using Table = uint8x16_t;
FORERUN_INLINE Table table(const std::int8_t* values) { return vreinterpretq_u8_s8(vld1q_s8(values)); }
FORERUN_INLINE Bytes look_up(Table values, Bytes codes) {
    return each_byte([&](int i) { return vqtbl1q_u8(values, codes.v[i]); });
}

// --- sums over the codes of several inputs; isa/dots.h says what they are ---

struct Eight {
    Bytes low, high;
};

// A load of a row serves 8 inputs of all outputs.
template <int STEPS, int M, class CodesAt>
FORERUN_INLINE void sum_rows(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) out[m] = zero_wide();
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const int8x8_t row = vld1_s8(x + m * kGroup + 8 * i);
#pragma GCC unroll 4
            for (int j = 0; j < 4; ++j) {
                Wide& sum = out[m];
                sum.v[j] = vdotq_lane_s32(sum.v[j], vreinterpretq_s8_u8(codes.low.v[j]), row, 0);
                sum.v[j] = vdotq_lane_s32(sum.v[j], vreinterpretq_s8_u8(codes.high.v[j]), row, 1);
            }
        }
    }
}

#ifdef __ARM_FEATURE_MATMUL_INT8
inline constexpr int kCodeRowTile = 8;

// 4 * QUADS outputs of M rows, from output 4 * FIRST on: the codes of two outputs times two rows at a time.
template <int STEPS, int FIRST, int QUADS, int M, class CodesAt>
FORERUN_INLINE void sum_pairs(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    int32x4_t acc[M / 2][2 * QUADS];  // (2 outputs, 2 rows) each
#pragma GCC unroll 4
    for (auto& pair : acc)
#pragma GCC unroll 8
        for (auto& sums : pair) sums = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);  // compilers leave out what is of other outputs
        int8x16_t weights[2 * QUADS];
#pragma GCC unroll 4
        for (int j = 0; j < QUADS; ++j) {
            const uint32x4_t low = vreinterpretq_u32_u8(codes.low.v[FIRST + j]),
                             high = vreinterpretq_u32_u8(codes.high.v[FIRST + j]);
            weights[2 * j] = vreinterpretq_s8_u32(vzip1q_u32(low, high));
            weights[2 * j + 1] = vreinterpretq_s8_u32(vzip2q_u32(low, high));
        }
#pragma GCC unroll 4
        for (int p = 0; p < M / 2; ++p) {
            const std::int8_t* row = x + 2 * p * kGroup + 8 * i;
            const int8x16_t rows = vcombine_s8(vld1_s8(row), vld1_s8(row + kGroup));
#pragma GCC unroll 8
            for (int j = 0; j < 2 * QUADS; ++j) acc[p][j] = vmmlaq_s32(acc[p][j], weights[j], rows);
        }
    }
#pragma GCC unroll 4
    for (int p = 0; p < M / 2; ++p)
#pragma GCC unroll 4
        for (int j = 0; j < QUADS; ++j) {
            out[2 * p].v[FIRST + j] = vuzp1q_s32(acc[p][2 * j], acc[p][2 * j + 1]);
            out[2 * p + 1].v[FIRST + j] = vuzp2q_s32(acc[p][2 * j], acc[p][2 * j + 1]);
        }
}
#else
inline constexpr int kCodeRowTile = 4;
#endif

// Unsigned codes below 128, and those of load_codes8 and look_up: signed bytes, all of them. A Narrow holds any number
// of dots.
template <int STEPS, int M, class CodesAt>
FORERUN_INLINE void sum_bytes(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
#ifdef __ARM_FEATURE_MATMUL_INT8
    // 16 sums at a time stay in registers. Of 2 rows, the codes' way into pairs costs what it saves.
    if constexpr (M == 8) {
        sum_pairs<STEPS, 0, 2>(codes_at, x, out);
        sum_pairs<STEPS, 2, 2>(codes_at, x, out);
        return;
    } else if constexpr (M == 4) {
        return sum_pairs<STEPS, 0, 4>(codes_at, x, out);
    }
#endif
    sum_rows<STEPS>(codes_at, x, out);
}
template <int STEPS, int DOTS, int M, class CodesAt>
FORERUN_INLINE void sum_codes(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    sum_bytes<STEPS>(codes_at, x, out);
}

// --- the same of flattened rows, code + 128, with signed codes of weights ---

inline constexpr int kTilesAside = 1;  // tiles that share the loads of a row
// 4-bit codes of weights, times 16: their nibble is the upper one.
inline constexpr int kNibbleShift = 4;
FORERUN_INLINE Bytes low_codes(Bytes x) { return bits_up(x, 4, 0xF0); }
FORERUN_INLINE Bytes high_codes(Bytes x) { return bits(x, 0, 0xF0); }
FORERUN_INLINE Wide shift_down(Wide x, int shift) {
    const int32x4_t by = vdupq_n_s32(-shift);
    for (auto& lanes : x.v) lanes = vshlq_s32(lanes, by);
    return x;
}
FORERUN_INLINE Wide load_wide(const std::int32_t* p) {
    return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
}
struct Four {  // 4 codes of a row, for each output
    int8x16_t v;
};
// Whether dots are those of code + 128, with 4 and 8 bits.
#ifdef __ARM_FEATURE_MATMUL_INT8
inline constexpr bool kIsOffset4 = true, kIsOffset8 = true;
FORERUN_INLINE Four four(const std::uint8_t* x) { return {splat4(x)}; }
FORERUN_INLINE void add_flat8(Wide& acc, Four x, Bytes w) {
    for (int i = 0; i < 4; ++i)
        acc.v[i] = vusdotq_s32(acc.v[i], vreinterpretq_u8_s8(x.v), vreinterpretq_s8_u8(w.v[i]));
}
#else
inline constexpr bool kIsOffset4 = false, kIsOffset8 = false;
FORERUN_INLINE Four four(const std::uint8_t* x) { return {veorq_s8(splat4(x), vdupq_n_s8(-128))}; }
FORERUN_INLINE void add_flat8(Wide& acc, Four x, Bytes w) { dot4(acc, w, x.v); }
#endif
FORERUN_INLINE void add_flat4(Wide& acc, Four x, Bytes w) { add_flat8(acc, x, w); }

}  // namespace forerun::FORERUN_ISA

#undef FORERUN_INLINE
