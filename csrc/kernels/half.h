// fp16, bf16, e4m3 and exponents as words, without the help of the processor.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace forerun {

static inline float float_of_word(std::uint32_t word) {
    float value;
    std::memcpy(&value, &word, 4);
    return value;
}

static inline std::uint32_t word_of_float(float value) {
    std::uint32_t word;
    std::memcpy(&word, &value, 4);
    return word;
}

static inline float bfloat_to_float(std::uint16_t b) {
    return float_of_word(static_cast<std::uint32_t>(b) << 16);
}

// 2^(e - 128): half of what a byte of exponent means in MX formats, whose codes are doubled.
static inline float exponent_to_float(std::uint8_t e) {
    return float_of_word(e < 2 ? 0x200000u << e : static_cast<std::uint32_t>(e - 1) << 23);
}

static inline float half_to_float(std::uint16_t h) {
    const std::uint32_t sign = (h & 0x8000u) << 16, exponent = (h >> 10) & 31, mantissa = h & 1023;
    if (exponent == 31)
        return float_of_word(sign | 0x7F800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
    if (exponent != 0) return float_of_word(sign | ((exponent + 112) << 23) | (mantissa << 13));
    return float_of_word(sign | word_of_float(static_cast<float>(mantissa) * 0x1p-24f));
}

// 2^-8 of an e4m3 number, as fp16 with the same bits holds it; the two codes for NaN are not NaN.
static inline float small_e4m3_to_float(std::uint8_t x) {
    return half_to_float(static_cast<std::uint16_t>((x & 0x80) << 8 | (x & 0x7F) << 7));
}

static inline std::uint16_t float_to_half(float x) {  // to nearest, ties to even
    const std::uint32_t word = word_of_float(x), sign = (word >> 16) & 0x8000u,
                        size = word & 0x7FFFFFFFu;
    if (size > 0x7F800000u)
        return static_cast<std::uint16_t>(sign | 0x7E00u | ((size >> 13) & 0x3FFu));
    if (size >= 0x477FF000u) return static_cast<std::uint16_t>(sign | 0x7C00u);
    if (size < 0x38800000u) {  // below the smallest normal: whole multiples of 2^-24
        const float steps = std::nearbyint(float_of_word(size) * 0x1p24f);
        return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(steps));
    }
    const std::uint32_t odd = (size >> 13) & 1;
    return static_cast<std::uint16_t>(sign | ((size - 0x38000000u + 0xFFFu + odd) >> 13));
}

}  // namespace forerun
