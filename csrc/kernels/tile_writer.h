// Writes stored groups into weight tiles: 16 outputs at a time, so that vector code puts their codes into lines.
// Compiled for each instruction set (pack_rows.h) and once without one (pack.cpp).

#pragma once

#include <cstring>

#include "kernels/blocks.h"
#include "kernels/tile_layout.h"

namespace forerun {
namespace {

[[gnu::always_inline]] inline void put_half(std::uint8_t* at, int lane, std::uint16_t h) {
    std::memcpy(at + 2 * lane, &h, 2);
}

using Words = std::uint32_t[kUnit / 4][kTile];  // of a unit: 4 codes, a byte each, of every lane

// `bits` bits of each code, from bit `first` on, into as many lines: word i of a line's 8 / bits words
// lies i * bits up.
template <int BITS>
[[gnu::always_inline]] inline void write_lines(const Words& words, int first, std::uint8_t* lines) {
    constexpr int num_words = 8 / BITS;
    constexpr std::uint32_t mask = 0x01010101u * ((1u << BITS) - 1);
    for (int line = 0; line < BITS; ++line) {
        std::uint32_t out[kTile] = {};
        for (int i = 0; i < num_words; ++i)
            for (int lane = 0; lane < kTile; ++lane)
                out[lane] |= (words[line * num_words + i][lane] >> first & mask) << i * BITS;
        std::memcpy(lines + line * kLine, out, kLine);
    }
}

[[gnu::always_inline]] inline void write_codes(const WeightFormat& f, const Words& words, std::uint8_t* unit) {
    const int lows = low_bits(f);
    switch (lows) {
        case 8: return write_lines<8>(words, 0, unit);
        case 4: write_lines<4>(words, 0, unit); break;
        default: write_lines<2>(words, 0, unit);
    }
    std::uint8_t* tops = unit + kLine * lows;
    if (f.bits - lows == 1) write_lines<1>(words, lows, tops);
    if (f.bits - lows == 2) write_lines<2>(words, lows, tops);
}

// One output's scale and minimum into lane `lane` of a group's.
[[gnu::always_inline]] inline void write_scales(const WeightFormat& f, std::uint8_t* scales, int lane,
                                                const StoredGroup& group) {
    switch (f.scales) {
        case Scales::SuperAlone:
        case Scales::Channel: return;
        case Scales::SuperNibbles:
            scales[lane] = static_cast<std::uint8_t>(group.scale | group.minimum << 4);
            return;
        case Scales::SuperMin:
            scales[kTile + lane] = static_cast<std::uint8_t>(group.minimum);
            [[fallthrough]];
        case Scales::SuperSigned:
        case Scales::Small:
        case Scales::Exponent: scales[lane] = static_cast<std::uint8_t>(group.scale); return;
        default:
            put_half(scales, lane, group.scale);
            if (has_pair(f.scales)) put_half(scales + 32, lane, group.minimum);
    }
}

// Outputs of a tile, as packing goes: where it lies, its first output, and how many there are.
struct TileRows {
    std::uint8_t* tile;
    int first, count;
};

// The groups of outputs, as read(row, g) gives them, into their tile. Inlined where the format is a constant.
template <class Read>
[[gnu::always_inline]] inline void write_groups(const WeightFormat& f, int num_in, const TileRows& at,
                                                const Read& read) {
    const int parts = kUnit / f.group, num_words = f.group / 4;
    Words words = {};  // lanes without an output stay zero
    for (int u = 0; u < num_in / kUnit; ++u) {
        std::uint8_t* unit = at.tile + unit_offset(f, u);
        std::uint8_t* scales = unit + codes_nbytes(f);
        for (int lane = 0; lane < at.count; ++lane)
            for (int part = 0; part < parts; ++part) {
                const StoredGroup group = read(at.first + lane, u * parts + part);
                for (int i = 0; i < num_words; ++i)
                    std::memcpy(&words[part * num_words + i][lane], group.codes + 4 * i, 4);
                write_scales(f, scales + part * scales_nbytes(f.scales), lane, group);
            }
        write_codes(f, words, unit);
    }
}

}  // namespace
}  // namespace forerun
