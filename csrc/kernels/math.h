// Functions of single numbers, of operations that IEEE 754 rounds: no C library decides on a bit of a token. Vectors have
// their own in kernels/rows.h, with the same operations. src/forerun/gpu/numbers.py has them for a GPU.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/half.h"

namespace forerun::ieee {

// e^x as kernels/rows.h has it for vectors.
static inline float exp(float x) {
    if (__builtin_isnan(x)) return x;
    float t = x * 1.44269504f;
    t = t < -127.0f ? -127.0f : t > 127.0f ? 127.0f : t;
    const float n = t + 12582912.0f - 12582912.0f, r = t - n;
    float y = 1.326472731e-3f;
    for (float c : {9.671512991e-3f, 5.550733581e-2f, 2.402224243e-1f, 6.931470037e-1f, 1.0f}) y = __builtin_fmaf(y, r, c);
    return y * float_of_word(static_cast<std::uint32_t>(static_cast<int>(n) + 127) << 23);
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exp(0.0f - x)); }

static inline float tanh(float x) { return __builtin_fmaf(2.0f, sigmoid(2.0f * x), -1.0f); }

// 2 arctanh(z), |z| at most 0.2, of numbers or vectors of them.
template <class T>
static inline T double_arctanh(T z) {
    const T square = z * z, doubled = z + z;
    T series = square * (1.0f / 13) + 1.0f / 11;
    series = series * square + 1.0f / 9;
    series = series * square + 1.0f / 7;
    series = series * square + 1.0f / 5;
    series = series * square + 1.0f / 3;
    return doubled * square * series + doubled;
}

// log(1 + y), y >= 0: 1 + y = 2^exponent m, log m = 2 arctanh((m - 1) / (m + 1)).
static inline float log1p(float y) {
    if (y < 0.4f) return double_arctanh(y / (2.0f + y));
    if (!(y < std::numeric_limits<float>::infinity())) return y;
    const auto bits = static_cast<std::int32_t>(word_of_float(1.0f + y)), exponent = (bits - 0x3F3504F3) >> 23;
    const float m = float_of_word(static_cast<std::uint32_t>(bits - (exponent << 23)));
    return static_cast<float>(exponent) * 0.6931472f + double_arctanh((m - 1.0f) / (m + 1.0f));
}

static inline float softplus(float x) { return x > 20.0f ? x : log1p(exp(x)); }

struct Turn {
    float cos, sin;
};

// Multiples of pi / 2 are taken off an angle in three parts, and the rest goes into the polynomials of Arm's optimized
// routines (MIT), in fp64: cosf and sinf of glibc, but for one float in 100 million, which its fused code rounds the other
// way. Above 2^28 no float is near a position's angle; what is left of 2 pi, rounded, will do.
static inline Turn turn(float angle) {
    if (!__builtin_isfinite(angle)) return {angle - angle, angle - angle};
    constexpr double magic = 0x1.8p52;
    const bool is_near = __builtin_fabsf(angle) < 0x1p28f;
    const double x = is_near ? angle : __builtin_fmod(angle, 0x1.921FB54442D18p2), n = x * 0x1.45F306DC9C883p-1 + magic - magic,
                 r = ((x - n * 0x1.921FB5p0) - n * 0x1.110B46p-26) - n * 0x1.1A62633145C07p-54,
                 q = r * r, cube = r * q, fourth = q * q;
    const double s = (r + cube * -0x1.555545995a603p-3) +
                     (cube * q) * (0x1.1107605230bc4p-7 + q * -0x1.994eb3774cf24p-13);
    const double c = ((1.0 + q * -0x1.ffffffd0c621cp-2) + fourth * 0x1.55553e1068f19p-5) +
                     (fourth * q) * (-0x1.6c087e89a359dp-10 + q * 0x1.99343027bf8c3p-16);
    const auto quadrant = static_cast<unsigned>(static_cast<std::int64_t>(n)) & 3;
    const double cos = quadrant & 1 ? s : c, sin = quadrant & 1 ? c : s;
    return {static_cast<float>((quadrant + 1) & 2 ? -cos : cos), static_cast<float>(quadrant & 2 ? -sin : sin)};
}

}  // namespace forerun::ieee
