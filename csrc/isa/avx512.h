// 16 lanes on AVX-512 (F, BW, VL, VNNI): one 512-bit register.

#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace forerun::FORERUN_ISA {

inline constexpr int kRowTile = 8;

struct F {
    __m512 v;
};

inline F splat(float x) { return {_mm512_set1_ps(x)}; }
inline F load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
inline F load(const std::uint16_t* p) {  // fp16
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline void store(std::uint16_t* p, F x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_bf16(const std::uint16_t* p) {
    const __m512i x =
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))};
}
inline F load_bytes16(const std::uint8_t* p) {  // whole numbers 0..255
    return {_mm512_cvtepi32_ps(
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F float_bytes(__m128i x) {  // 0..255
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(x))};
}
inline F load_exponents(const std::uint8_t* p) {  // 2^(byte - 128)
    const __m512i e =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x200000), e);
    const __m512i large = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 is_small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(is_small, large, small))};
}
inline F load_e4m3(const std::uint8_t* p) {  // as fp16, 256 times too small
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return {_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(x, 7),
                                             _mm256_set1_epi16(static_cast<short>(0xBF80))))};
}
inline F load(const std::int8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x))};
}
inline F load_low4(const std::uint8_t* p) {  // 16 numbers 0..15
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return float_bytes(_mm_and_si128(x, _mm_set1_epi8(15)));
}
inline F load_high4(const std::uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return float_bytes(_mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15)));
}

inline F add(F x, F y) { return {_mm512_add_ps(x.v, y.v)}; }
inline F sub(F x, F y) { return {_mm512_sub_ps(x.v, y.v)}; }
inline F mul(F x, F y) { return {_mm512_mul_ps(x.v, y.v)}; }
inline F div(F x, F y) { return {_mm512_div_ps(x.v, y.v)}; }
inline F fma(F x, F y, F z) { return {_mm512_fmadd_ps(x.v, y.v, z.v)}; }
inline F max(F x, F y) { return {_mm512_max_ps(x.v, y.v)}; }  // y if either is NaN
inline F min(F x, F y) { return {_mm512_min_ps(x.v, y.v)}; }
inline F abs(F x) { return {_mm512_abs_ps(x.v)}; }
inline F round(F x) {  // to the nearest integer, ties to even
    return {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline F pow2(F n) {  // 2^n for whole n in -127..127, 0 for -127
    const __m512i word =
        _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23);
    return {_mm512_castsi512_ps(word)};
}

// A bit for every lane that is not below the limit.
inline unsigned not_below(F x, float limit) {
    return _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(limit), _CMP_NLT_UQ);
}

inline __m256 low(__m512 x) { return _mm512_castps512_ps256(x); }
inline __m256 high(__m512 x) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
}

// Halving tree: lane i + lane i+8, then +4, +2, +1, on every instruction set.
inline float sum(F x) {
    const __m256 eight = _mm256_add_ps(low(x.v), high(x.v));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
template <int Distance>
F swap_lanes(F x) {  // lane i becomes lane i ^ Distance, of 1, 2, 4 and 8
    if constexpr (Distance == 1) return {_mm512_permute_ps(x.v, 0xB1)};
    if constexpr (Distance == 2) return {_mm512_permute_ps(x.v, 0x4E)};
    if constexpr (Distance == 4) return {_mm512_shuffle_f32x4(x.v, x.v, 0xB1)};
    if constexpr (Distance == 8) return {_mm512_shuffle_f32x4(x.v, x.v, 0x4E)};
}
inline float largest(F x) {
    const __m256 eight = _mm256_max_ps(low(x.v), high(x.v));
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Rounds 16 floats within -127..127 to int8, stores them and returns their sum.
inline int store_int8(std::int8_t* p, F x) {
    const __m512i words = _mm512_cvtps_epi32(x.v);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(words));
    return _mm512_reduce_add_epi32(words);
}

// Rounds 16 floats within 0..255 to bytes and stores them.
inline void store_uint8(std::uint8_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}

// --- integer dot products: 16 outputs, 4 bytes of each ---

struct Bytes {
    __m512i v;
};
inline Bytes load_bytes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline Bytes bits(Bytes x, int shift,
                  int mask) {  // (x >> shift) & mask, byte by byte; mask has at most 8 - shift bits
    return {_mm512_and_si512(_mm512_srli_epi16(x.v, static_cast<unsigned>(shift)),
                             _mm512_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes bits_up(Bytes x, int shift, int mask) {  // (x << shift) & mask
    return {_mm512_and_si512(_mm512_slli_epi16(x.v, static_cast<unsigned>(shift)),
                             _mm512_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes either(Bytes x, Bytes y) { return {_mm512_or_si512(x.v, y.v)}; }

inline __m512i splat4(const std::int8_t* x) {
    std::int32_t word;
    __builtin_memcpy(&word, x, 4);
    return _mm512_set1_epi32(word);
}

struct Wide {
    __m512i v;
};
using Narrow = Wide;
inline Wide zero_wide() { return {_mm512_setzero_si512()}; }
inline Narrow first_dot(Bytes w, const std::int8_t* x) {
    return {_mm512_dpbusd_epi32(_mm512_setzero_si512(), w.v, splat4(x))};
}
inline void add_dot(Narrow& acc, Bytes w, const std::int8_t* x) {
    acc.v = _mm512_dpbusd_epi32(acc.v, w.v, splat4(x));
}
inline Wide widen(Narrow x) { return x; }
inline Wide add(Wide x, Wide y) { return {_mm512_add_epi32(x.v, y.v)}; }
inline Wide add(Wide x, std::int32_t y) { return {_mm512_add_epi32(x.v, _mm512_set1_epi32(y))}; }
inline F to_float(Wide x) { return {_mm512_cvtepi32_ps(x.v)}; }

// 8-bit codes, code + 128 stored. Their dots are those of codes + kByteZero.
inline constexpr int kByteZero = 128;
inline Bytes load_codes8(const std::uint8_t* p) { return load_bytes(p); }
inline void add_dot8(Wide& acc, Bytes w, const std::int8_t* x) { add_dot(acc, w, x); }

// 16 signed numbers that codes stand for; looked up they are like 8-bit codes.
using Table = __m512i;
inline Table table(const std::int8_t* values) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return _mm512_xor_si512(_mm512_broadcast_i32x4(x), _mm512_set1_epi8(-128));
}
inline Bytes look_up(Table values, Bytes codes) { return {_mm512_shuffle_epi8(values, codes.v)}; }

// --- the same of flattened rows, code + 128, with signed codes of weights ---

inline constexpr int kTilesAside = 2;  // tiles that share the loads of a row
// Whether dots are those of code + 128, with 4 and 8 bits.
inline constexpr bool kIsOffset4 = true, kIsOffset8 = true;

struct Four {  // 4 codes of a row, for each output
    __m512i v;
};
inline Four four(const std::uint8_t* x) {
    return {splat4(reinterpret_cast<const std::int8_t*>(x))};
}
// 4-bit codes of weights, times 16: their nibble is the upper one.
inline constexpr int kNibbleShift = 4;
inline Bytes low_codes(Bytes x) { return bits_up(x, 4, 0xF0); }
inline Bytes high_codes(Bytes x) { return bits(x, 0, 0xF0); }
inline void add_flat4(Wide& acc, Four x, Bytes w) { acc.v = _mm512_dpbusd_epi32(acc.v, x.v, w.v); }
inline void add_flat8(Wide& acc, Four x, Bytes w) { add_flat4(acc, x, w); }
inline Wide shift_down(Wide x, int shift) {
    return {_mm512_srai_epi32(x.v, static_cast<unsigned>(shift))};
}
inline Wide load_wide(const std::int32_t* p) { return {_mm512_loadu_si512(p)}; }

}  // namespace forerun::FORERUN_ISA

#include "isa/dots.h"
