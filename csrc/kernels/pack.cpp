// Packing: whole tiles at a time, so that the codes of 16 outputs are put into lines by vector code.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/formats.h"
#include "kernels/half.h"
#include "kernels/tile_layout.h"
#include "kernels/tile_writer.h"
#include "threads.h"

namespace forerun {

namespace {

// Some numbers of every row at a time: rows that lie a power of two apart would drive each other out of the cache.
template <int SIZE>
void write_floats(const Linear& linear, const TileRows& at, const std::uint8_t* rows) {
    constexpr int most = 32;
    const std::size_t row_nbytes = std::size_t(linear.num_in) * SIZE;
    std::uint8_t numbers[kTile][most][SIZE] = {};  // lanes without an output stay zero
    for (int k = 0; k < linear.num_in; k += most) {
        const int count = std::min(most, linear.num_in - k);
        for (int lane = 0; lane < at.count; ++lane)
            std::memcpy(numbers[lane], rows + (at.first + lane) * row_nbytes + std::size_t(k) * SIZE,
                        count * SIZE);
        for (int i = 0; i < count; ++i) {
            std::uint8_t line[kTile][SIZE];
            for (int lane = 0; lane < kTile; ++lane) std::memcpy(line[lane], numbers[lane][i], SIZE);
            std::memcpy(at.tile + float_offset(*linear.format, k + i), line, sizeof line);
        }
    }
}
void write_floats(const Linear& linear, const TileRows& at, const std::uint8_t* rows) {
    switch (linear.format->bits) {
        case 8: return write_floats<1>(linear, at, rows);
        case 16: return write_floats<2>(linear, at, rows);
        default: write_floats<4>(linear, at, rows);
    }
}

// Calls write(outputs of a tile) for every tile, in parallel, some at a time, so that a thread that another program
// holds up delays no other. Packing happens once, so it does without the pool and its rules.
template <class Write>
void fill_tiles(Packed& packed, const float* bias, int num_threads, const Write& write) {
    constexpr int least = 8;  // fewer tiles are packed faster by one thread
    const Linear& linear = packed.linear;
    const int num_out = linear.num_out, num_tiles = linear.num_tiles();
    const int threads = std::max(1, std::min(num_threads, num_tiles / least));
    const int step = std::max(least, num_tiles / (8 * threads));
    std::atomic<int> next = 0;
    const auto some = [&](int) {
        for (int first; (first = next.fetch_add(step)) < num_tiles;)
            for (int tile = first; tile < std::min(first + step, num_tiles); ++tile)
                write(TileRows{packed.memory.as<std::uint8_t>() + tile * linear.tile_nbytes,
                               tile * kTile, std::min(kTile, num_out - tile * kTile)});
    };
    {
        std::vector<std::jthread> others;
        start_threads(others, 1, threads, some);
        some(0);
    }
    if (bias) std::copy_n(bias, num_out, packed.bias.as<float>());
}

}  // namespace

Packed pack(const Kernels& kernels, const WeightFormat& format, int num_out, int num_in,
            const std::uint8_t* rows, const float* bias, int num_threads) {
    if (format.is_flat() || format.scales == Scales::Single)
        throw std::invalid_argument(std::string(format.name) + " has no stored blocks");
    const std::size_t row_nbytes = stored_row_nbytes(format, num_in);
    Packed packed = blank(format, num_out, num_in, bias != nullptr);
    fill_tiles(packed, bias, num_threads, [&](const TileRows& at) {
        if (format.is_float())
            write_floats(packed.linear, at, rows);
        else
            kernels.pack_rows(packed.linear, at.count, rows + at.first * row_nbytes, row_nbytes, at.tile);
    });
    return packed;
}

namespace {

Packed pack_float8(const WeightFormat& format, int num_out, int num_in, const Codes& source,
                   const float* bias, int num_threads) {
    if (source.mins || source.group != format.group)
        throw std::invalid_argument(std::string(format.name) + " has no tiles for such codes");
    const int num_scales = (num_in + format.group - 1) / format.group;
    Packed packed = blank(format, num_out, num_in, bias != nullptr);
    fill_tiles(packed, bias, num_threads, [&](const TileRows& at) {
        write_floats(packed.linear, at, reinterpret_cast<const std::uint8_t*>(source.codes));
        for (int lane = 0; lane < at.count; ++lane) {
            const float* scales = source.scales + std::size_t(at.first + lane) * num_scales;
            for (int k = 0; k < num_in; k += format.group)
                std::memcpy(at.tile + float_offset(format, k) - kLine + 4 * lane,
                            scales + k / format.group, 4);
        }
    });
    return packed;
}

void keep_order(Packed& packed, const std::int32_t* order) {
    const int num_in = packed.linear.num_in;
    std::vector<char> is_taken(num_in, 0);
    for (int i = 0; i < num_in; ++i)
        if (order[i] < 0 || order[i] >= num_in || is_taken[order[i]]++)
            throw std::invalid_argument("an order must name every column once");
    packed.places = weight_memory(num_in * sizeof(std::int32_t));
    std::copy_n(order, num_in, packed.places.as<std::int32_t>());
    packed.linear.order = packed.places.as<std::int32_t>();
}

}  // namespace

Packed pack(const WeightFormat& format, int num_out, int num_in, const Codes& source,
            const float* bias, int num_threads) {
    if (format.scales == Scales::Single && !source.order)
        return pack_float8(format, num_out, num_in, source, bias, num_threads);
    const bool has_min = has_pair(format.scales);
    if (!(has_min || format.scales == Scales::Half) || format.values ||
        has_min != (source.mins != nullptr))
        throw std::invalid_argument(std::string(format.name) + " has no tiles for such codes");
    if (source.group <= 0 || source.group % format.group || num_in % source.group)
        throw std::invalid_argument("groups must be multiples of " + std::to_string(format.group));
    const std::size_t num_scales = num_in / source.group;
    Packed packed = blank(format, num_out, num_in, bias != nullptr);
    if (source.order) keep_order(packed, source.order);
    const auto read = [&](int row, int g) {
        const std::size_t k = static_cast<std::size_t>(g) * format.group;
        const std::size_t s = row * num_scales + k / source.group;
        const std::int8_t* codes = source.codes + row * std::size_t(num_in);
        StoredGroup group{};
        for (int i = 0; i < format.group; ++i)
            group.codes[i] = static_cast<std::uint8_t>(
                codes[source.order ? source.order[k + i] : k + i] + format.zero);
        group.scale = float_to_half(source.scales[s]);
        if (has_min) group.minimum = float_to_half(source.mins[s]);
        return group;
    };
    fill_tiles(packed, bias, num_threads,
               [&](const TileRows& at) { write_groups(format, num_in, at, read); });
    return packed;
}

namespace {

// Which places the inputs have, in memory of the packed weights.
void place_inputs(Packed& packed, int num_in, const FlatCodes& source) {
    const int num_more = packed.linear.num_in - num_in, num_groups = num_in / kGroup;
    const std::size_t words = num_in + 3 * std::size_t(num_more) + num_groups + 1;
    packed.places = weight_memory(words * sizeof(float));
    float *inverse = packed.places.as<float>(), *low = inverse + num_in, *high = low + num_more;
    auto* from = reinterpret_cast<std::int32_t*>(high + num_more);
    std::int32_t* first = from + num_more;
    std::copy_n(source.inverse, num_in, inverse);
    int i = 0;
    for (int j = 0; j < num_in; ++j) {
        if (j % kGroup == 0) first[j / kGroup] = i;
        for (int piece = 1; piece < source.pieces[j]; ++piece, ++i) {
            from[i] = j;
            low[i] = static_cast<float>(piece * source.limit);
            high[i] = low[i] + static_cast<float>(source.limit);
        }
    }
    first[num_groups] = i;
    packed.flat = std::make_unique<const Flattening>(
        Flattening{num_in, packed.linear.num_in, static_cast<float>(source.limit), inverse, from,
                   low, high, first, source.uses_hadamard});
    packed.linear.flat = packed.flat.get();
}

// The codes of all places of some outputs, then scales and offsets at the tile's head.
void write_flat(const Linear& linear, const TileRows& at, const FlatCodes& source) {
    const Flattening& flat = *linear.flat;
    const int num_places = flat.num_in + flat.first[flat.num_in / kGroup];
    const int mask = linear.format->bits == 4 ? 15 : 255;
    std::int32_t offsets[kTile] = {};
    write_groups(*linear.format, linear.num_in, at, [&](int row, int g) {
        const std::int8_t* codes = source.codes + static_cast<std::size_t>(row) * flat.num_in;
        StoredGroup group{};
        for (int i = 0, p = g * kGroup; i < kGroup && p < num_places; ++i, ++p) {
            const int code = codes[p < flat.num_in ? p : flat.source[p - flat.num_in]];
            group.codes[i] = static_cast<std::uint8_t>(code & mask);
            offsets[row - at.first] -= kCodeZero * code;
        }
        return group;
    });
    std::memcpy(at.tile, source.scales + at.first, 4 * at.count);
    std::memcpy(at.tile + kLine, offsets, 4 * at.count);
}

}  // namespace

Packed pack(const WeightFormat& format, int num_out, int num_in, const FlatCodes& source,
            const float* bias, int num_threads) {
    constexpr std::int64_t widest = 1 << 16;  // sums of so many products fit 32 bits
    if (!format.is_flat())
        throw std::invalid_argument(std::string(format.name) + " is not for flattened rows");
    check_width(format, num_in);
    std::int64_t num_places = 0;
    for (int j = 0; j < num_in; ++j) {
        if (source.pieces[j] < 1 || source.pieces[j] > widest)
            throw std::invalid_argument("an input has no place or too many");
        num_places += source.pieces[j];
    }
    const std::int64_t wide = (num_places + kGroup - 1) / kGroup * kGroup;
    if (wide > widest) throw std::invalid_argument("flattened rows are wider than 65536");
    if (source.limit < 0 || source.limit > 127)
        throw std::invalid_argument("the limit of flattened codes must be 1 to 127, or 0");
    if (source.limit == 0 && num_places > num_in)
        throw std::invalid_argument("inputs of rows with scales of their own have one place");
    if (source.limit > 0 && source.uses_hadamard)
        throw std::invalid_argument("only rows with scales of their own are transformed");
    const int low = format.bits == 4 ? -8 : -127, high = format.bits == 4 ? 7 : 127;
    for (std::size_t i = 0; i < std::size_t(num_out) * num_in; ++i)
        if (source.codes[i] < low || source.codes[i] > high)
            throw std::invalid_argument("a code is not within " + std::to_string(low) + ".." +
                                        std::to_string(high));
    Packed packed = blank(format, num_out, static_cast<int>(wide), bias != nullptr);
    place_inputs(packed, num_in, source);
    fill_tiles(packed, bias, num_threads,
               [&](const TileRows& at) { write_flat(packed.linear, at, source); });
    return packed;
}

}  // namespace forerun
