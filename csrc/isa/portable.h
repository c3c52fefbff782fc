// 16 lanes in plain C++: the oracle of the other instruction sets, and what every other machine
// runs.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace forerun::FORERUN_ISA {

inline constexpr int kRowTile = 4;

struct F {
    float v[16];
};

template <class Op>
inline F each(Op op) {
    F r;
    for (int i = 0; i < 16; ++i) r.v[i] = op(i);
    return r;
}

inline F splat(float x) {
    return each([&](int) { return x; });
}
inline F load(const float* p) {
    F r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline void store(float* p, F x) { std::memcpy(p, x.v, sizeof x.v); }
inline F load(const std::uint16_t* p) {
    return each([&](int i) { return half_to_float(p[i]); });
}
inline void store(std::uint16_t* p, F x) {
    for (int i = 0; i < 16; ++i) p[i] = float_to_half(x.v[i]);
}
inline F load_bf16(const std::uint16_t* p) {
    return each([&](int i) { return bfloat_to_float(p[i]); });
}
inline F load_bytes16(const std::uint8_t* p) {  // whole numbers 0..255
    return each([&](int i) { return static_cast<float>(p[i]); });
}
inline F load_exponents(const std::uint8_t* p) {  // 2^(byte - 128)
    return each([&](int i) { return exponent_to_float(p[i]); });
}
inline F load_e4m3(const std::uint8_t* p) {  // 256 times too small
    return each([&](int i) { return small_e4m3_to_float(p[i]); });
}
inline F load(const std::int8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i]); });
}
inline F load_low4(const std::uint8_t* p) {  // 16 numbers 0..15
    return each([&](int i) { return static_cast<float>(p[i] & 15); });
}
inline F load_high4(const std::uint8_t* p) {
    return each([&](int i) { return static_cast<float>(p[i] >> 4); });
}

inline F add(F x, F y) {
    return each([&](int i) { return x.v[i] + y.v[i]; });
}
inline F sub(F x, F y) {
    return each([&](int i) { return x.v[i] - y.v[i]; });
}
inline F mul(F x, F y) {
    return each([&](int i) { return x.v[i] * y.v[i]; });
}
inline F div(F x, F y) {
    return each([&](int i) { return x.v[i] / y.v[i]; });
}
inline F fma(F x, F y, F z) {
    return each([&](int i) { return __builtin_fmaf(x.v[i], y.v[i], z.v[i]); });
}
inline F max(F x, F y) {  // y if either is NaN
    return each([&](int i) { return x.v[i] > y.v[i] ? x.v[i] : y.v[i]; });
}
inline F min(F x, F y) {
    return each([&](int i) { return x.v[i] < y.v[i] ? x.v[i] : y.v[i]; });
}
inline F abs(F x) {
    return each([&](int i) { return __builtin_fabsf(x.v[i]); });
}
inline F round(F x) {  // to the nearest integer, ties to even
    return each([&](int i) { return __builtin_nearbyintf(x.v[i]); });
}
inline F pow2(F n) {  // 2^n for whole n in -127..127, 0 for -127
    return each([&](int i) {
        const bool is_number = n.v[i] == n.v[i];
        return float_of_word(
            static_cast<std::uint32_t>((is_number ? static_cast<int>(n.v[i]) : 0) + 127) << 23);
    });
}
// A bit for every lane that is not below the limit.
inline unsigned not_below(F x, float limit) {
    unsigned lanes = 0;
    for (int i = 0; i < 16; ++i) lanes |= static_cast<unsigned>(!(x.v[i] < limit)) << i;
    return lanes;
}

// Halving tree: lane i + lane i+8, then +4, +2, +1, on every instruction set.
inline float sum(F x) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) x.v[i] += x.v[i + width];
    return x.v[0];
}
template <int Distance>
F swap_lanes(F x) {  // lane i becomes lane i ^ Distance, of 1, 2, 4 and 8
    return each([&](int i) { return x.v[i ^ Distance]; });
}
inline float largest(F x) {
    for (int width = 8; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) x.v[i] = x.v[i] > x.v[i + width] ? x.v[i] : x.v[i + width];
    return x.v[0];
}

// Rounds 16 floats within -127..127 to int8, stores them and returns their sum.
inline int store_int8(std::int8_t* p, F x) {
    int total = 0;
    for (int i = 0; i < 16; ++i) {
        p[i] = static_cast<std::int8_t>(__builtin_nearbyintf(x.v[i]));
        total += p[i];
    }
    return total;
}

// Rounds 16 floats within 0..255 to bytes and stores them.
inline void store_uint8(std::uint8_t* p, F x) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<std::uint8_t>(__builtin_nearbyintf(x.v[i]));
}

// --- integer dot products: 16 outputs, 4 bytes of each ---

struct Bytes {
    std::uint8_t v[64];
};
inline Bytes load_bytes(const std::uint8_t* p) {
    Bytes r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}
inline Bytes bits(Bytes x, int shift, int mask) {  // (x >> shift) & mask
    for (auto& byte : x.v) byte = static_cast<std::uint8_t>((byte >> shift) & mask);
    return x;
}
inline Bytes bits_up(Bytes x, int shift, int mask) {  // (x << shift) & mask
    for (auto& byte : x.v) byte = static_cast<std::uint8_t>((byte << shift) & mask);
    return x;
}
inline Bytes either(Bytes x, Bytes y) {
    for (int i = 0; i < 64; ++i) x.v[i] |= y.v[i];
    return x;
}

struct Wide {
    std::int32_t v[16];
};
using Narrow = Wide;
inline Wide zero_wide() { return {}; }
inline void add_dot(Narrow& acc, const Bytes& w, const std::int8_t* x) {
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 4; ++k) acc.v[i] += w.v[4 * i + k] * x[k];
}
inline Narrow first_dot(const Bytes& w, const std::int8_t* x) {
    Narrow acc{};
    add_dot(acc, w, x);
    return acc;
}
// 8-bit codes, code + 128 stored. Their dots are those of codes + kByteZero.
inline constexpr int kByteZero = 128;
inline Bytes load_codes8(const std::uint8_t* p) { return load_bytes(p); }
inline void add_dot8(Wide& acc, const Bytes& w, const std::int8_t* x) { add_dot(acc, w, x); }
// 16 signed numbers that codes stand for; looked up they are like 8-bit codes.
using Table = const std::int8_t*;
inline Table table(const std::int8_t* values) { return values; }
inline Bytes look_up(Table values, Bytes codes) {
    for (auto& byte : codes.v) byte = static_cast<std::uint8_t>(values[byte] + kByteZero);
    return codes;
}
inline Wide widen(Narrow x) { return x; }
inline Wide add(Wide x, Wide y) {
    for (int i = 0; i < 16; ++i) x.v[i] += y.v[i];
    return x;
}
inline Wide add(Wide x, std::int32_t y) {
    for (auto& lane : x.v) lane += y;
    return x;
}
inline F to_float(Wide x) {
    return each([&](int i) { return static_cast<float>(x.v[i]); });
}

// --- the same of flattened rows, code + 128, with signed codes of weights ---

inline constexpr int kTilesAside = 1;  // tiles that share the loads of a row
inline constexpr bool kIsOffset4 = false, kIsOffset8 = false;  // dots are those of the codes
inline constexpr int kNibbleShift = 0;
struct Four {  // 4 codes of a row, for each output
    int v[4];
};
inline Four four(const std::uint8_t* x) {
    return {x[0] - 128, x[1] - 128, x[2] - 128, x[3] - 128};
}
inline Bytes signed_nibbles(Bytes x) {
    for (auto& byte : x.v) byte = static_cast<std::uint8_t>((byte ^ 8) - 8);
    return x;
}
inline Bytes low_codes(Bytes x) { return signed_nibbles(bits(x, 0, 15)); }
inline Bytes high_codes(Bytes x) { return signed_nibbles(bits(x, 4, 15)); }
inline void add_flat8(Wide& acc, const Four& x, const Bytes& w) {
    for (int i = 0; i < 16; ++i)
        for (int k = 0; k < 4; ++k) acc.v[i] += static_cast<std::int8_t>(w.v[4 * i + k]) * x.v[k];
}
inline void add_flat4(Wide& acc, const Four& x, const Bytes& w) { add_flat8(acc, x, w); }
inline Wide shift_down(Wide x, int) { return x; }
inline Wide load_wide(const std::int32_t* p) {
    Wide r;
    std::memcpy(r.v, p, sizeof r.v);
    return r;
}

}  // namespace forerun::FORERUN_ISA

#include "isa/dots.h"
