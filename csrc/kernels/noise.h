// The sampler's noise: core/random.py says how it is made, and is its reference. No operation is fused.

#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/math.h"
#include "model/types.h"

namespace forerun::FORERUN_ISA {

// The compiler's own vectors, as wide as this instruction set's registers.
#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
using Words = std::uint32_t __attribute__((vector_size(4 * kLanes)));
using Ints = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Floats = float __attribute__((vector_size(4 * kLanes)));

inline Words mix32(Words x) {
    x = (x ^ (x >> 16)) * 0x85EBCA6Bu;
    x = (x ^ (x >> 13)) * 0xC2B2AE35u;
    return x ^ (x >> 16);
}

inline Words token_bits(std::uint64_t key, Words tokens) {
    const Words x = mix32(tokens * 0x9E3779B9u + static_cast<std::uint32_t>(key));
    return mix32(x + static_cast<std::uint32_t>(key >> 32));
}

// (m + 1/2) / 2^32, m the low 31 bits.
inline Floats half_uniform(Words bits) {
    return (__builtin_convertvector((Ints)(bits & 0x7FFFFFFFu), Floats) + 0.5f) * 0x1p-32f;
}

// x = 2^exponent m, log m = 2 arctanh((m - 1) / (m + 1)).
struct LogParts {
    Floats above, below, exponent;
};

inline LogParts log_parts(Floats x) {
    const Ints bits = (Ints)x, exponent = (bits - 0x3F3504F3) >> 23;
    const Floats m = (Floats)(bits - (exponent << 23));
    return {m - 1.0f, m + 1.0f, __builtin_convertvector(exponent, Floats)};
}

constexpr float kLn2 = 0.6931472f;

inline Floats gumbel(Words bits) {
    const Ints is_small = (Ints)bits >= 0;
    const Floats v = half_uniform(bits);
    const LogParts of_v = log_parts(v);
    const Floats z = (is_small ? v : -of_v.above) / (is_small ? 2.0f - v : of_v.below);
    const Floats whole = -of_v.exponent * kLn2;
    const Floats exponential = (is_small ? Floats{} : whole) + ieee::double_arctanh(z);
    const LogParts parts = log_parts(exponential);
    return -parts.exponent * kLn2 + ieee::double_arctanh(-parts.above / parts.below);
}

// Not below the noise: -log(-log u) < -log v, where log2 is no less than a line through powers of two.
inline Floats gumbel_bound(Words bits) {
    const Floats line = __builtin_convertvector((Ints)half_uniform(bits), Floats);
    return (127.0f * kLn2 + 1e-3f) - line * (0x1p-23f * kLn2);
}

inline Words tokens_from(const std::int32_t* ids, int first) {
    Words tokens;
    for (int j = 0; j < kLanes; ++j) tokens[j] = static_cast<std::uint32_t>(first + j);
    if (ids) std::memcpy(&tokens, ids + first, sizeof tokens);
    return tokens;
}

inline void noise(std::uint64_t key, const std::int32_t* ids, int count, float* out) {
    for (int i = 0; i < count; i += kLanes) {
        const int num = count - i < kLanes ? count - i : kLanes;
        Words tokens{};
        std::memcpy(&tokens, ids + i, sizeof(float) * num);
        const Floats y = gumbel(token_bits(key, tokens));
        std::memcpy(out + i, &y, sizeof(float) * num);
    }
}

inline int find_score(const Perturbation& how, const float* x, int first, int count, float limit,
                      float* score) {
    float scores[kTile];
    for (int i = first / kTile * kTile; i < count; i += kTile) {
        Words bits[kTile / kLanes];
        Floats logits[kTile / kLanes];
        for (int part = 0; part < kTile / kLanes; ++part) {
            const int at = i + part * kLanes;
            std::memcpy(&logits[part], x + at, sizeof logits[part]);
            logits[part] *= how.factor;
            bits[part] = token_bits(how.key, tokens_from(how.ids, at) + how.first_token);
            const Floats bound = logits[part] + gumbel_bound(bits[part]);
            std::memcpy(scores + part * kLanes, &bound, sizeof bound);
        }
        if (!not_below(load(scores), limit)) continue;
        for (int part = 0; part < kTile / kLanes; ++part) {
            const Floats exact = logits[part] + gumbel(bits[part]);
            std::memcpy(scores + part * kLanes, &exact, sizeof exact);
        }
        unsigned lanes = not_below(load(scores), limit);
        if (i < first) lanes &= ~0u << (first - i);
        if (!lanes) continue;
        const int found = i + __builtin_ctz(lanes);
        if (found >= count) return count;
        *score = scores[found - i];
        return found;
    }
    return count;
}

}  // namespace forerun::FORERUN_ISA
