// Layers of flattened rows by AMX's tiles. Nothing stands between the codes of such a layer, so sums stay in tiles from
// the first input to the last. Where each group of inputs has a scale, tiles are slower than vectors (dev/LOG.md).

#pragma once

#include <algorithm>
#include <cstddef>

#include "isa/tiles.h"
#include "kernels/linear.h"

namespace forerun::FORERUN_ISA {

inline constexpr int kBlock = 2 * kRowsAside;  // rows that share the loads of codes

// The codes of T tiles, kGroup inputs at a time, as tiles load them: those of 8 bits as they lie.
template <class Code, int T>
class CodeLines {
  public:
    CodeLines(const Linear& linear, const std::uint8_t* w) : w_(w), tile_nbytes_(linear.tile_nbytes) {}
    const std::uint8_t* of(int g, int t) const { return w_ + t * tile_nbytes_ + g * Code::nbytes; }

  private:
    const std::uint8_t* const w_;
    const std::size_t tile_nbytes_;
};

// Those of 4 bits unpacked, some groups ahead: a tile load waits until stores to where it reads are over.
template <int T>
class CodeLines<Flat4, T> {
  public:
    CodeLines(const Linear& linear, const std::uint8_t* w)
        : w_(w), tile_nbytes_(linear.tile_nbytes), num_groups_(linear.num_in / kGroup) {
        unpack(0);
    }
    // Groups are asked for in order, tile 0 first.
    const std::uint8_t* of(int g, int t) {
        if (t == 0 && g % kAhead == 0) unpack(g + kAhead);
        return lines_[g / kAhead % 2][g % kAhead][t][0];
    }

  private:
    static constexpr int kAhead = 4;

    void unpack(int first) {
        for (int g = first; g < first + kAhead && g < num_groups_; ++g)
            for (int t = 0; t < T; ++t)
                for (int line = 0; line < 4; ++line) {
                    auto& to = lines_[g / kAhead % 2][g % kAhead][t];
                    const Bytes codes = load_bytes(w_ + t * tile_nbytes_ + g * Flat4::nbytes + 64 * line);
                    _mm512_store_si512(to[2 * line], low_codes(codes).v);
                    _mm512_store_si512(to[2 * line + 1], high_codes(codes).v);
                }
    }

    const std::uint8_t* const w_;
    const std::size_t tile_nbytes_;
    const int num_groups_;
    alignas(64) std::uint8_t lines_[2][kAhead][T][8][64];
};

// Dots of BLOCKS * kRowsAside rows, whose blocks are `next` bytes apart, with T tiles.
template <class Code, int T, int BLOCKS>
void sum_by_tiles(const Linear& linear, const std::uint8_t* w, const std::uint8_t* x, std::size_t next,
                  std::int32_t (&sums)[kTilesAside][kBlock][kTile]) {
    CodeLines<Code, T> codes(linear, w);
    FORERUN_TILE_ZERO(0);
    if constexpr (BLOCKS == 2) FORERUN_TILE_ZERO(1);
    if constexpr (T == 2) FORERUN_TILE_ZERO(2);
    if constexpr (T == 2 && BLOCKS == 2) FORERUN_TILE_ZERO(3);
    for (int g = 0; g < linear.num_in / kGroup; ++g, w += Code::nbytes, x += kRowsAside * kGroup) {
        for (int t = 0; t < T; ++t) prefetch(w + t * linear.tile_nbytes, Code::nbytes / 64);
        FORERUN_TILE_LOAD(4, x, kGroup);
        FORERUN_TILE_LOAD(6, codes.of(g, 0), 64);
        FORERUN_TILE_SIGNED_CODES(0, 4, 6);
        if constexpr (BLOCKS == 2) {
            FORERUN_TILE_LOAD(5, x + next, kGroup);
            FORERUN_TILE_SIGNED_CODES(1, 5, 6);
        }
        if constexpr (T == 2) {
            FORERUN_TILE_LOAD(7, codes.of(g, 1), 64);
            FORERUN_TILE_SIGNED_CODES(2, 4, 7);
            if constexpr (BLOCKS == 2) FORERUN_TILE_SIGNED_CODES(3, 5, 7);
        }
    }
    FORERUN_TILE_STORE(0, sums[0], 64);
    if constexpr (BLOCKS == 2) FORERUN_TILE_STORE(1, sums[0][kRowsAside], 64);
    if constexpr (T == 2) FORERUN_TILE_STORE(2, sums[1], 64);
    if constexpr (T == 2 && BLOCKS == 2) FORERUN_TILE_STORE(3, sums[1][kRowsAside], 64);
}

template <class Code, int T>
void flat_by_tiles(const Linear& linear, int tile, const Rows& rows, int row, int num_rows, const Output& output,
                   float* out) {
    const std::uint8_t* head = linear.tiles + static_cast<std::size_t>(tile) * linear.tile_nbytes;
    alignas(64) std::int32_t sums[kTilesAside][kBlock][kTile];
    for (const int stop = row + num_rows; row < stop; row += kBlock, out += kBlock * output.stride) {
        const auto* x = reinterpret_cast<const std::uint8_t*>(rows.q) + rows.first_group(row) * kGroup;
        const int count = std::min(stop - row, kBlock);
        (count > kRowsAside ? sum_by_tiles<Code, T, 2> : sum_by_tiles<Code, T, 1>)(
            linear, head + head_nbytes(Scales::Channel), x, rows.first_group(kRowsAside) * kGroup, sums);
        for (int t = 0; t < T; ++t)
            for (int m = 0; m < count; ++m) {
                const Wide total = load_wide(sums[t][m]);
                F sum[] = {scale_flat<Code>(linear, head + t * linear.tile_nbytes, rows, row + m, total)};
                put(linear, tile + t, sum, output, out + m * output.stride + t * kTile);
            }
    }
}

template <class Code>
void flat_by_tiles(const Linear& linear, int tile, int num_tiles, const Rows& rows, int row, int num_rows,
                   const Output& output) {
    assert(row % kRowsAside == 0);
    for (int i = 0, step; i < num_tiles; i += step) {
        step = num_tiles - i >= kTilesAside ? kTilesAside : 1;
        (step == kTilesAside ? flat_by_tiles<Code, kTilesAside> : flat_by_tiles<Code, 1>)(
            linear, tile + i, rows, row, num_rows, output, output.out + i * kTile);
    }
}

}  // namespace forerun::FORERUN_ISA
