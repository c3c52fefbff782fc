// What checkpoints store: blocks of codes with their scales, read a group at a time.

#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/grids.h"
#include "model/types.h"

namespace forerun {

inline constexpr int kSuper = 256;  // values of a K block

// What codes stand for: IQ4's values; twice the numbers of e2m1 (OCP Microscaling Formats 1.0), whose scales are halved in
// turn.
inline constexpr std::int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t kFp4Values[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                               0, -1, -2, -3, -4, -6, -8, -12};

static inline std::uint16_t half_at(const std::uint8_t* p) {
    std::uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

// Bits `first`.. of N bytes, `count` of each, `up` bits up in as many codes; a word at a time, which compilers
// make vectors of.
template <int N>
static inline void add_bits(const std::uint8_t* from, int first, int count, int up, std::uint8_t* codes) {
    const std::uint64_t mask = 0x0101010101010101u * ((1u << count) - 1);
    for (int i = 0; i < N; i += 8) {
        std::uint64_t word, out;
        std::memcpy(&word, from + i, 8);
        std::memcpy(&out, codes + i, 8);
        out |= (word >> first & mask) << up;
        std::memcpy(codes + i, &out, 8);
    }
}

// Low nibbles are values 0..15, high ones 16..31.
static inline void add_nibbles(const std::uint8_t* from, std::uint8_t* codes) {
    add_bits<16>(from, 0, 4, 0, codes);
    add_bits<16>(from, 4, 4, 0, codes + 16);
}

// Blocks of 32: scale, minimum, fifth bits, codes.
template <int BITS, bool HAS_MIN>
static inline StoredGroup read_block(const std::uint8_t* p, int) {
    StoredGroup out{};
    out.scale = half_at(p);
    if (HAS_MIN) out.minimum = half_at(p + 2);
    p += HAS_MIN ? 4 : 2;
    if (BITS == 8) {
        for (int i = 0; i < kGroup; ++i) out.codes[i] = static_cast<std::uint8_t>(p[i] + 128);
        return out;
    }
    if (BITS == 5) {
        std::uint32_t fifth;
        std::memcpy(&fifth, p, 4);
        for (int i = 0; i < kGroup; ++i)
            out.codes[i] = static_cast<std::uint8_t>((fifth >> i & 1) << 4);
        p += 4;
    }
    add_nibbles(p, out.codes);
    return out;
}

// Scale, minimum, unsigned codes of 8 bits.
static inline StoredGroup read_q8_m(const std::uint8_t* p, int) {
    StoredGroup out{};
    out.scale = half_at(p);
    out.minimum = half_at(p + 2);
    std::memcpy(out.codes, p + 4, kGroup);
    return out;
}

// The factor of the output, two e4m3 scales, 16 bytes of codes: of each 16 values the first 8 are low nibbles.
static inline StoredGroup read_nvfp4(const std::uint8_t* p, int j) {
    StoredGroup out{};
    out.scale = p[4 + j];
    add_bits<8>(p + 6 + 8 * j, 0, 4, 0, out.codes);
    add_bits<8>(p + 6 + 8 * j, 4, 4, 0, out.codes + 8);
    return out;
}

// 32 values of a TQ2_0 block, which are bits of 32 bytes.
static inline StoredGroup read_tq2_0(const std::uint8_t* block, int j) {
    StoredGroup out{};
    add_bits<32>(block + 32 * (j / 4), j % 4 * 2, 2, 0, out.codes);
    return out;
}

// Digit `digit` of `count` numbers in base 3.
static inline void add_digits(const std::uint8_t* from, int count, int digit, std::uint8_t* codes) {
    constexpr int powers[] = {1, 3, 9, 27, 81};
    for (int i = 0; i < count; ++i)
        codes[i] = static_cast<std::uint8_t>((from[i] * powers[digit] & 255) * 3 >> 8);
}

// 32 values of a TQ1_0 block: digits of its first 32 bytes, of the next 16, of the last 4.
static inline StoredGroup read_tq1_0(const std::uint8_t* block, int j) {
    StoredGroup out{};
    if (j < 5) {
        add_digits(block, 32, j, out.codes);
        return out;
    }
    const int digit = 2 * (j - 5);
    add_digits(block + 32, 16, digit, out.codes);
    if (j < 7)
        add_digits(block + 32, 16, digit + 1, out.codes + 16);
    else
        for (int i = 0; i < 4; ++i) add_digits(block + 48, 4, i, out.codes + 16 + 4 * i);
    return out;
}

// The exponent of an MXFP4 block, then its codes.
static inline StoredGroup read_fp4(const std::uint8_t* p, int) {
    StoredGroup out{};
    out.scale = p[0];
    add_nibbles(p + 1, out.codes);
    return out;
}

// Sub-block j of an IQ4_XS block: fp16 factor, tops of the scales, their nibbles, codes.
static inline StoredGroup read_iq4_xs(const std::uint8_t* block, int j) {
    StoredGroup out{};
    const int low = (block[4 + j / 2] >> (4 * (j % 2))) & 15, top = (half_at(block + 2) >> (2 * j)) & 3;
    out.scale = static_cast<std::uint16_t>((low | top << 4) - 32);
    add_nibbles(block + 8 + 16 * j, out.codes);
    return out;
}

// 16 values of a Q2_K or Q3_K block, whose 2 low bits lie in runs of 32 that share 32 bytes.
static inline void add_pairs(const std::uint8_t* pairs, int j, std::uint8_t* codes) {
    add_bits<16>(pairs + 32 * (j / 8) + 16 * (j % 2), j % 8 / 2 * 2, 2, 0, codes);
}

// A byte of scale and minimum for each 16 values, the codes, the factors.
static inline StoredGroup read_q2_k(const std::uint8_t* block, int j) {
    StoredGroup out{};
    out.scale = block[j] & 15;
    out.minimum = block[j] >> 4;
    add_pairs(block + 16, j, out.codes);
    return out;
}

// The third bits, the other two, 16 scales of 6 bits (their low nibbles, then the tops), the factor.
static inline StoredGroup read_q3_k(const std::uint8_t* block, int j) {
    StoredGroup out{};
    const std::uint8_t* s = block + 96;
    const int low = (s[j % 8] >> (j / 8 * 4)) & 15, top = (s[8 + j % 4] >> (j / 4 * 2)) & 3;
    out.scale = static_cast<std::uint16_t>((low | top << 4) - 32);
    add_pairs(block + 32, j, out.codes);
    add_bits<16>(block + 16 * (j % 2), j / 2, 1, 2, out.codes);
    return out;
}

// Sub-block j of a K block of 4 or 5 bits. 6 bits of scale and of minimum lie in 12 bytes;
// sub-blocks 2i and 2i+1 share 32 bytes of nibbles; sub-block j's fifth bits are bit j.
template <int BITS>
static inline StoredGroup read_k(const std::uint8_t* block, int j) {
    const std::uint8_t* s = block + 4;
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
    const int minimum = j < 4 ? s[j + 4] & 63 : (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
    StoredGroup out{};
    out.scale = static_cast<std::uint16_t>(scale);
    out.minimum = static_cast<std::uint16_t>(minimum);
    add_bits<32>(block + (BITS == 5 ? 48 : 16) + 32 * (j / 2), 4 * (j % 2), 4, 0, out.codes);
    if (BITS == 5) add_bits<32>(block + 16, j, 1, 4, out.codes);
    return out;
}

// 16 values of a Q6_K block, which lie in one run of 32.
static inline StoredGroup read_q6_k(const std::uint8_t* block, int j) {
    const int half = j / 8, quarter = j % 8 / 2, lane = j % 2 * 16;
    StoredGroup out{};
    out.scale = block[192 + j];
    add_bits<16>(block + 64 * half + 32 * (quarter % 2) + lane, 4 * (quarter / 2), 4, 0, out.codes);
    add_bits<16>(block + 128 + 32 * half + lane, 2 * quarter, 2, 4, out.codes);
    return out;
}

// The fp16 factor, or pair `i` of factors, of a Super block.
static inline std::uint16_t factor_of(const WeightFormat& f, const std::uint8_t* block, int i = 0) {
    return f.factors_at == kInWords ? iq1_m_factor(block) : half_at(block + f.factors_at + 2 * i);
}

constexpr auto kFloat = Activations::Float;
constexpr auto kInt8 = Activations::Int8Groups;
constexpr auto kFlat = Activations::Flat;

// A new format is a line here, a function that reads its blocks and, if no tile kernel fits, a tile kernel. Python has
// them from here (weights/codes.py).
constexpr WeightFormat kFormats[] = {
    {"f32", Tile::F32, kFloat, 32, 1, 0, Scales::None, 1, 4, nullptr},
    {"f16", Tile::F16, kFloat, 16, 1, 0, Scales::None, 1, 2, nullptr},
    {"bf16", Tile::BF16, kFloat, 16, 1, 0, Scales::None, 1, 2, nullptr},
    {"f8", Tile::F8, kFloat, 8, kFloat8Group, 0, Scales::Single, 1, 1, nullptr},
    {"q4_0", Tile::Q4, kInt8, 4, 32, 8, Scales::Half, 32, 18, read_block<4, false>},
    {"q4_1", Tile::Q4M, kInt8, 4, 32, 0, Scales::HalfMin, 32, 20, read_block<4, true>},
    {"q4_z", Tile::Q4Z, kInt8, 4, 32, 0, Scales::HalfZero, 32, 20, read_block<4, true>},
    {"q5_0", Tile::Q5, kInt8, 5, 32, 16, Scales::Half, 32, 22, read_block<5, false>},
    {"q5_1", Tile::Q5M, kInt8, 5, 32, 0, Scales::HalfMin, 32, 24, read_block<5, true>},
    {"q8_0", Tile::Q8, kInt8, 8, 32, 128, Scales::Half, 32, 34, read_block<8, false>},
    {"q8_m", Tile::Q8M, kInt8, 8, 32, 0, Scales::HalfMin, 32, 36, read_q8_m},
    {"q8_z", Tile::Q8Z, kInt8, 8, 32, 128, Scales::HalfZero, 32, 36, read_block<8, true>},
    {"q2_k", Tile::Q2K, kInt8, 2, 16, 0, Scales::SuperNibbles, kSuper, 84, read_q2_k, 80},
    {"q3_k", Tile::Q3K, kInt8, 3, 16, 4, Scales::SuperSigned, kSuper, 110, read_q3_k, 108},
    {"q4_k", Tile::Q4K, kInt8, 4, 32, 0, Scales::SuperMin, kSuper, 144, read_k<4>},
    {"q5_k", Tile::Q5K, kInt8, 5, 32, 0, Scales::SuperMin, kSuper, 176, read_k<5>},
    {"q6_k", Tile::Q6K, kInt8, 6, 16, 32, Scales::SuperSigned, kSuper, 210, read_q6_k, 208},
    {"iq4_nl", Tile::IQ4, kInt8, 4, 32, 0, Scales::Half, 32, 18, read_block<4, false>, 0, kIq4Values},
    {"iq4_xs", Tile::T4K, kInt8, 4, 32, 0, Scales::SuperSigned, kSuper, 136, read_iq4_xs, 0,
     kIq4Values},
    {"iq3_xxs", Tile::T4K, kInt8, 4, 32, 0, Scales::SuperSigned, kSuper, 98, read_iq3_xxs, 0,
     kIq3xxsValues, 0.25f},
    {"iq3_s", Tile::T4K, kInt8, 4, 32, 0, Scales::SuperSigned, kSuper, 110, read_iq3_s, 0,
     kIq3sValues},
    {"iq2_xxs", Tile::T3K, kInt8, 3, 32, 0, Scales::SuperSigned, kSuper, 66, read_iq2_xxs, 0,
     kIq2Values, 0.125f},
    {"iq2_xs", Tile::T3P, kInt8, 3, 16, 0, Scales::SuperSigned, kSuper, 74, read_iq2_xs, 0,
     kIq2Values, 0.125f},
    {"iq2_s", Tile::T3P, kInt8, 3, 16, 0, Scales::SuperSigned, kSuper, 82, read_iq2_s, 0,
     kIq2Values, 0.125f},
    {"iq1_s", Tile::T3K, kInt8, 3, 32, 0, Scales::SuperSigned, kSuper, 50, read_iq1_s, 0,
     kIq1Values, 0.125f},
    {"iq1_m", Tile::T3P, kInt8, 3, 16, 0, Scales::SuperSigned, kSuper, 56, read_iq1_m, kInWords,
     kIq1Values, 0.125f},
    {"tq1_0", Tile::T2, kInt8, 2, 32, 1, Scales::SuperAlone, kSuper, 54, read_tq1_0, 52},
    {"tq2_0", Tile::T2, kInt8, 2, 32, 1, Scales::SuperAlone, kSuper, 66, read_tq2_0, 64},
    {"mxfp4", Tile::FP4, kInt8, 4, 32, 0, Scales::Exponent, 32, 17, read_fp4, 0, kFp4Values},
    {"nvfp4", Tile::NVFP4, kInt8, 4, 16, 0, Scales::Small, 32, 22, read_nvfp4, 0, kFp4Values, 0.5f},
    {"q4_c", Tile::Q4C, kFlat, 4, 32, 0, Scales::Channel, 32, 16, nullptr},
    {"q8_c", Tile::Q8C, kFlat, 8, 32, 0, Scales::Channel, 32, 32, nullptr},
};

}  // namespace forerun
