// 16 lanes on AVX2 + FMA + F16C: two 256-bit registers. With AVX-VNNI the integer dot products take
// one instruction.

#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace forerun::FORERUN_ISA {

inline constexpr int kRowTile = 4;

struct F {
    __m256 a, b;
};

inline F splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
inline F load(const std::uint16_t* p) {  // fp16
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
inline void store(std::uint16_t* p, F x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                     _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
inline F load_bf16(const std::uint16_t* p) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    const __m256i lo = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(x));
    const __m256i hi = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(x, 1));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))};
}
inline F load_bytes16(const std::uint8_t* p) {  // whole numbers 0..255
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
inline F float_bytes(__m128i x) {  // 0..255
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
inline F load_exponents(const std::uint8_t* p) {  // 2^(byte - 128)
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    const auto powers = [](__m256i e) {
        const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
        const __m256i large = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
        const __m256i is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e);
        return _mm256_castsi256_ps(_mm256_blendv_epi8(large, small, is_small));
    };
    return {powers(_mm256_cvtepu8_epi32(x)), powers(_mm256_cvtepu8_epi32(_mm_srli_si128(x, 8)))};
}
inline F load_e4m3(const std::uint8_t* p) {  // as fp16, 256 times too small
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m256i halves =
        _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16(static_cast<short>(0xBF80)));
    return {_mm256_cvtph_ps(_mm256_castsi256_si128(halves)),
            _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1))};
}
inline F load(const std::int8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
inline F load_low4(const std::uint8_t* p) {  // 16 numbers 0..15
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return float_bytes(_mm_and_si128(x, _mm_set1_epi8(15)));
}
inline F load_high4(const std::uint8_t* p) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return float_bytes(_mm_and_si128(_mm_srli_epi16(x, 4), _mm_set1_epi8(15)));
}

inline F add(F x, F y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F sub(F x, F y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F div(F x, F y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F fma(F x, F y, F z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
inline F max(F x, F y) {
    return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)};
}  // y if either is NaN
inline F min(F x, F y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F abs(F x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F round(F x) {  // to the nearest integer, ties to even
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline F pow2(F n) {  // 2^n for whole n in -127..127, 0 for -127
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i a = _mm256_add_epi32(_mm256_cvtps_epi32(n.a), bias);
    const __m256i b = _mm256_add_epi32(_mm256_cvtps_epi32(n.b), bias);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(a, 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(b, 23))};
}
// A bit for every lane that is not below the limit.
inline unsigned not_below(F x, float limit) {
    const __m256 bound = _mm256_set1_ps(limit);
    const int a = _mm256_movemask_ps(_mm256_cmp_ps(x.a, bound, _CMP_NLT_UQ)),
              b = _mm256_movemask_ps(_mm256_cmp_ps(x.b, bound, _CMP_NLT_UQ));
    return static_cast<unsigned>(a | b << 8);
}

// Halving tree: lane i + lane i+8, then +4, +2, +1, on every instruction set.
inline float sum(F x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
template <int Distance>
F swap_lanes(F x) {  // lane i becomes lane i ^ Distance, of 1, 2, 4 and 8
    if constexpr (Distance == 1) return {_mm256_permute_ps(x.a, 0xB1), _mm256_permute_ps(x.b, 0xB1)};
    if constexpr (Distance == 2) return {_mm256_permute_ps(x.a, 0x4E), _mm256_permute_ps(x.b, 0x4E)};
    if constexpr (Distance == 4)
        return {_mm256_permute2f128_ps(x.a, x.a, 1), _mm256_permute2f128_ps(x.b, x.b, 1)};
    if constexpr (Distance == 8) return {x.b, x.a};
}
inline float largest(F x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// Rounds 16 floats within -127..127 to int8, stores them and returns their sum.
inline int store_int8(std::int8_t* p, F x) {
    const __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    const __m128i bytes =
        _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    const __m256i eight = _mm256_add_epi32(a, b);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xB1)));
}

// Rounds 16 floats within 0..255 to bytes and stores them.
inline void store_uint8(std::uint8_t* p, F x) {
    const __m256i words = _mm256_permute4x64_epi64(
        _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)), 0xD8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packus_epi16(_mm256_castsi256_si128(words),
                                      _mm256_extracti128_si256(words, 1)));
}

// --- integer dot products: 16 outputs, 4 bytes of each ---

struct Bytes {
    __m256i a, b;
};
inline Bytes load_bytes(const std::uint8_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline Bytes bits(Bytes x, int shift,
                  int mask) {  // (x >> shift) & mask, byte by byte; mask has at most 8 - shift bits
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(_mm256_srli_epi16(x.a, shift), m),
            _mm256_and_si256(_mm256_srli_epi16(x.b, shift), m)};
}
inline Bytes bits_up(Bytes x, int shift, int mask) {  // (x << shift) & mask
    const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
    return {_mm256_and_si256(_mm256_slli_epi16(x.a, shift), m),
            _mm256_and_si256(_mm256_slli_epi16(x.b, shift), m)};
}
inline Bytes either(Bytes x, Bytes y) {
    return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)};
}

// Compilers see that integer sums can be reordered and gather all products before adding them,
// which spills them to memory.
inline void pin(__m256i& x, __m256i& y) { asm("" : "+x"(x), "+x"(y)); }

inline __m256i splat4(const std::int8_t* x) {
    std::int32_t word;
    __builtin_memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}

// Sums of unsigned codes times signed activations. `Narrow` holds pairs in 16 bits: the caller
// empties it into a `Wide` before 32767 can be passed (8 dots of 4-bit codes: 8 * 2 * 15 * 127 =
// 30480; 2 of 6-bit codes: 32004).
struct Wide {
    __m256i a, b;
};
inline Wide zero_wide() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
#ifdef __AVXVNNI__
using Narrow = Wide;
inline Narrow first_dot(Bytes w, const std::int8_t* x) {
    const __m256i v = splat4(x), zero = _mm256_setzero_si256();
    return {_mm256_dpbusd_avx_epi32(zero, w.a, v), _mm256_dpbusd_avx_epi32(zero, w.b, v)};
}
inline void add_dot(Narrow& acc, Bytes w, const std::int8_t* x) {
    const __m256i v = splat4(x);
    acc = {_mm256_dpbusd_avx_epi32(acc.a, w.a, v), _mm256_dpbusd_avx_epi32(acc.b, w.b, v)};
}
inline Wide widen(Narrow x) { return x; }
#else
struct Narrow {
    __m256i a, b;
};
inline Narrow first_dot(Bytes w, const std::int8_t* x) {
    const __m256i v = splat4(x);
    return {_mm256_maddubs_epi16(w.a, v), _mm256_maddubs_epi16(w.b, v)};
}
inline void add_dot(Narrow& acc, Bytes w, const std::int8_t* x) {
    const __m256i v = splat4(x);
    acc.a = _mm256_add_epi16(acc.a, _mm256_maddubs_epi16(w.a, v));
    acc.b = _mm256_add_epi16(acc.b, _mm256_maddubs_epi16(w.b, v));
    pin(acc.a, acc.b);
}
inline Wide widen(Narrow x) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_madd_epi16(x.a, ones), _mm256_madd_epi16(x.b, ones)};
}
#endif
inline Wide add(Wide x, Wide y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline Wide add(Wide x, std::int32_t y) {
    const __m256i v = _mm256_set1_epi32(y);
    return {_mm256_add_epi32(x.a, v), _mm256_add_epi32(x.b, v)};
}
inline F to_float(Wide x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

// 8-bit codes, code + 128 stored. Their dots are those of codes + kByteZero.
#ifdef __AVXVNNI__
inline constexpr int kByteZero = 128;
inline Bytes load_codes8(const std::uint8_t* p) { return load_bytes(p); }
inline void add_dot8(Wide& acc, Bytes w, const std::int8_t* x) { add_dot(acc, w, x); }
#else
inline constexpr int kByteZero = 0;
inline Bytes load_codes8(const std::uint8_t* p) {
    const Bytes w = load_bytes(p);
    const __m256i top = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(w.a, top), _mm256_xor_si256(w.b, top)};
}
// |w| times x with w's sign. 2 * 128 * 127 = 32512 fits 16 bits.
inline void add_dot8(Wide& acc, Bytes w, const std::int8_t* x) {
    const __m256i v = splat4(x), ones = _mm256_set1_epi16(1);
    const __m256i a = _mm256_maddubs_epi16(_mm256_abs_epi8(w.a), _mm256_sign_epi8(v, w.a));
    const __m256i b = _mm256_maddubs_epi16(_mm256_abs_epi8(w.b), _mm256_sign_epi8(v, w.b));
    acc.a = _mm256_add_epi32(acc.a, _mm256_madd_epi16(a, ones));
    acc.b = _mm256_add_epi32(acc.b, _mm256_madd_epi16(b, ones));
}
#endif

// 16 signed numbers that codes stand for; looked up they are like 8-bit codes.
using Table = __m256i;
inline Table table(const std::int8_t* values) {
    const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(values));
    return _mm256_xor_si256(_mm256_broadcastsi128_si256(x),
                            _mm256_set1_epi8(static_cast<char>(kByteZero)));
}
inline Bytes look_up(Table values, Bytes codes) {
    return {_mm256_shuffle_epi8(values, codes.a), _mm256_shuffle_epi8(values, codes.b)};
}

// --- the same of flattened rows, code + 128, with signed codes of weights ---

inline constexpr int kTilesAside = 1;  // tiles that share the loads of a row
struct Four {  // 4 codes of a row, for each output
    __m256i v;
};
inline Four four(const std::uint8_t* x) {
    return {splat4(reinterpret_cast<const std::int8_t*>(x))};
}
inline Wide shift_down(Wide x, int shift) {
    return {_mm256_srai_epi32(x.a, shift), _mm256_srai_epi32(x.b, shift)};
}
inline Wide load_wide(const std::int32_t* p) {
    const __m256i* q = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
#ifdef __AVXVNNI__
// Whether dots are those of code + 128, with 4 and 8 bits.
inline constexpr bool kIsOffset4 = true, kIsOffset8 = true;
// 4-bit codes of weights, times 16: their nibble is the upper one.
inline constexpr int kNibbleShift = 4;
inline Bytes low_codes(Bytes x) { return bits_up(x, 4, 0xF0); }
inline Bytes high_codes(Bytes x) { return bits(x, 0, 0xF0); }
inline void add_flat4(Wide& acc, Four x, Bytes w) {
    acc = {_mm256_dpbusd_avx_epi32(acc.a, x.v, w.a), _mm256_dpbusd_avx_epi32(acc.b, x.v, w.b)};
}
inline void add_flat8(Wide& acc, Four x, Bytes w) { add_flat4(acc, x, w); }
#else
inline constexpr bool kIsOffset4 = true, kIsOffset8 = false;
// 4-bit codes of weights as they are: 2 * 255 * 8 = 4080 fits 16 bits.
inline constexpr int kNibbleShift = 0;
inline Bytes signed_nibbles(Bytes x) {
    const __m256i eight = _mm256_set1_epi8(8);
    return {_mm256_sub_epi8(_mm256_xor_si256(x.a, eight), eight),
            _mm256_sub_epi8(_mm256_xor_si256(x.b, eight), eight)};
}
inline Bytes low_codes(Bytes x) { return signed_nibbles(bits(x, 0, 15)); }
inline Bytes high_codes(Bytes x) { return signed_nibbles(bits(x, 4, 15)); }
inline void add_flat4(Wide& acc, Four x, Bytes w) {
    const __m256i ones = _mm256_set1_epi16(1);
    acc.a = _mm256_add_epi32(acc.a, _mm256_madd_epi16(_mm256_maddubs_epi16(x.v, w.a), ones));
    acc.b = _mm256_add_epi32(acc.b, _mm256_madd_epi16(_mm256_maddubs_epi16(x.v, w.b), ones));
}
inline void add_flat8(Wide& acc, Four x, Bytes w) {
    const __m256i v = _mm256_xor_si256(x.v, _mm256_set1_epi8(-128)), ones = _mm256_set1_epi16(1);
    const __m256i a = _mm256_maddubs_epi16(_mm256_abs_epi8(w.a), _mm256_sign_epi8(v, w.a));
    const __m256i b = _mm256_maddubs_epi16(_mm256_abs_epi8(w.b), _mm256_sign_epi8(v, w.b));
    acc.a = _mm256_add_epi32(acc.a, _mm256_madd_epi16(a, ones));
    acc.b = _mm256_add_epi32(acc.b, _mm256_madd_epi16(b, ones));
}
#endif

}  // namespace forerun::FORERUN_ISA

#include "isa/dots.h"
