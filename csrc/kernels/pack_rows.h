// Packing of what checkpoints store: the blocks of 16 outputs become a tile, by code made for each format.

#pragma once

#include <iterator>
#include <utility>

#include "kernels/tile_writer.h"

namespace forerun::FORERUN_ISA {

[[gnu::always_inline]] inline void write_factors(const WeightFormat& f, int num_in, std::uint8_t* tile,
                                                 int lane, const std::uint8_t* row) {
    const int nbytes = factors_nbytes(f.scales);
    for (int u = 0; u < num_in / kUnit; u += kSuper / kUnit, row += f.block_nbytes) {
        std::uint8_t* at = tile + unit_offset(f, u) - nbytes;
        put_half(at, lane, factor_of(f, row));
        if (nbytes == 32) continue;
        const int minimum = factor_of(f, row, 1) ^ 0x8000;  // minima are subtracted
        put_half(at + 32, lane, static_cast<std::uint16_t>(minimum));
    }
}

// Format I of the table, a constant.
template <std::size_t I>
void pack_blocks(int num_in, int count, const std::uint8_t* rows, std::size_t row_nbytes,
                 std::uint8_t* tile) {
    constexpr const WeightFormat& f = kFormats[I];
    if constexpr (f.read != nullptr) {
        constexpr int groups = f.block / f.group;
        write_groups(f, num_in, {tile, 0, count}, [&](int row, int g) {
            return f.read(rows + row * row_nbytes + std::size_t(g / groups) * f.block_nbytes, g % groups);
        });
        if constexpr (is_super(f.scales))
            for (int lane = 0; lane < count; ++lane)
                write_factors(f, num_in, tile, lane, rows + lane * row_nbytes);
        if constexpr (f.scales == Scales::Small)
            for (int lane = 0; lane < count; ++lane)
                std::memcpy(tile + 4 * lane, rows + lane * row_nbytes, 4);
    }
}

template <std::size_t... I>
void pack_blocks_of(const WeightFormat& f, std::index_sequence<I...>, int num_in, int count,
                    const std::uint8_t* rows, std::size_t row_nbytes, std::uint8_t* tile) {
    // The first one will do: formats of one tile and block size are read alike.
    static_cast<void>((... || (kFormats[I].tile == f.tile && kFormats[I].block_nbytes == f.block_nbytes &&
                               (pack_blocks<I>(num_in, count, rows, row_nbytes, tile), true))));
}

// The outputs of one tile, `count` of them, which lie `row_nbytes` apart as a checkpoint stores integers.
static void pack_rows(const Linear& linear, int count, const std::uint8_t* rows, std::size_t row_nbytes,
                      std::uint8_t* tile) {
    pack_blocks_of(*linear.format, std::make_index_sequence<std::size(kFormats)>(), linear.num_in,
                   count, rows, row_nbytes, tile);
}

}  // namespace forerun::FORERUN_ISA
