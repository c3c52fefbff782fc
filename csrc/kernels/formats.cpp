#include "kernels/formats.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <stdexcept>
#include <thread>
#include <vector>

#include "kernels/blocks.h"
#include "kernels/half.h"
#include "model/pool.h"

namespace forerun {

namespace {

constexpr std::size_t kLine = 64;

// Codes are laid out for 32 inputs, whatever the group: one or two scales follow them.
constexpr int kUnit = kGroup;

int codes_nbytes(const WeightFormat& f) { return kTile * kUnit * f.bits / 8; }

int unit_nbytes(const WeightFormat& f) {
    return codes_nbytes(f) + kUnit / f.group * scales_nbytes(f.scales);
}

std::size_t tile_nbytes(const WeightFormat& f, int num_in) {
    if (f.is_float()) {
        const int num_scales = f.scales == Scales::None ? 0 : (num_in + f.group - 1) / f.group;
        return static_cast<std::size_t>(num_in) * kTile * f.bits / 8 + num_scales * kLine;
    }
    return (f.is_flat() ? kFlatHead : 0) + static_cast<std::size_t>(num_in / kUnit) * unit_nbytes(f) +
           static_cast<std::size_t>(num_in / kSuper) * factors_nbytes(f.scales);
}

// Where unit u of a tile starts: in front of 8 units of Scales::Super stand their factors.
std::size_t unit_offset(const WeightFormat& f, int u) {
    return (f.is_flat() ? kFlatHead : 0) + static_cast<std::size_t>(u) * unit_nbytes(f) +
           static_cast<std::size_t>(u / 8 + 1) * factors_nbytes(f.scales);
}

// Where value k of a float tile's first output lies.
std::size_t float_offset(const WeightFormat& f, int k) {
    const std::size_t scales = f.scales == Scales::None ? 0 : (k / f.group + 1) * kLine;
    return static_cast<std::size_t>(k) * kTile * f.bits / 8 + scales;
}

void put_half(std::uint8_t* at, int lane, std::uint16_t h) { std::memcpy(at + 2 * lane, &h, 2); }

// Value i, of 8, 4, 2 or 1 bits, of lane `lane` in lines of 64 bytes: a line holds 4 bytes a lane, and
// value i lies in byte i % 4.
std::size_t byte_of(int bits, int lane, int i) {
    return i / (32 / bits) * kLine + 4 * lane + i % 4;
}
int shift_of(int bits, int i) { return i % (32 / bits) / 4 * bits; }

// Values i..i+3, a byte each, over zeros.
void put_bits(std::uint8_t* lines, int bits, int lane, int i, std::uint32_t values) {
    std::uint8_t* at = lines + byte_of(bits, lane, i);
    std::uint32_t word;
    std::memcpy(&word, at, 4);
    word |= values << shift_of(bits, i);
    std::memcpy(at, &word, 4);
}
int bits_at(const std::uint8_t* lines, int bits, int lane, int i) {
    return lines[byte_of(bits, lane, i)] >> shift_of(bits, i) & ((1 << bits) - 1);
}

// Bits of a code that lie together below the others: 8, 4 or 2.
int low_bits(const WeightFormat& f) { return f.bits == 8 ? 8 : f.bits >= 4 ? 4 : 2; }

int read_code(const WeightFormat& f, const std::uint8_t* unit, int lane, int i) {
    const int lows = low_bits(f), tops = f.bits - lows, low = bits_at(unit, lows, lane, i);
    return tops == 0 ? low : low | bits_at(unit + kLine * lows, tops, lane, i) << lows;
}

// The lowest bits of four bytes.
std::uint32_t each_byte(int bits) { return 0x01010101u * ((1u << bits) - 1); }

// Writes one output's group, part `part` of a unit, into lane `lane` of its tile.
void write_group(const WeightFormat& f, std::uint8_t* unit, int part, int lane,
                 const StoredGroup& group) {
    const int lows = low_bits(f), tops = f.bits - lows;
    for (int i = 0; i < f.group; i += 4) {
        std::uint32_t codes;
        std::memcpy(&codes, group.codes + i, 4);
        const int at = part * f.group + i;
        put_bits(unit, lows, lane, at, codes & each_byte(lows));
        if (tops > 0)
            put_bits(unit + kLine * lows, tops, lane, at, codes >> lows & each_byte(tops));
    }
    std::uint8_t* scales = unit + codes_nbytes(f) + part * scales_nbytes(f.scales);
    switch (f.scales) {
        case Scales::Channel: return;
        case Scales::SuperNibbles:
            scales[lane] = static_cast<std::uint8_t>(group.scale | group.minimum << 4);
            return;
        case Scales::SuperMin:
            scales[kTile + lane] = static_cast<std::uint8_t>(group.minimum);
            [[fallthrough]];
        case Scales::SuperSigned:
        case Scales::Exponent: scales[lane] = static_cast<std::uint8_t>(group.scale); return;
        default:
            put_half(scales, lane, group.scale);
            if (has_pair(f.scales)) put_half(scales + 32, lane, group.minimum);
    }
}

// Copies what a tile holds of one lane, `nbytes` of each line of 16 lanes.
void copy_lane(const std::uint8_t* from, int from_lane, std::uint8_t* to, int to_lane,
               std::size_t nbytes, std::size_t num_lines) {
    for (std::size_t i = 0; i < num_lines; ++i, from += kTile * nbytes, to += kTile * nbytes)
        std::memcpy(to + to_lane * nbytes, from + from_lane * nbytes, nbytes);
}

// What the numbers of a lane take in the scales of a group: two nibbles are one number.
std::size_t number_nbytes(Scales scales) {
    const bool is_byte = is_super(scales) || scales == Scales::Exponent;
    return is_byte ? 1 : scales == Scales::Single ? 4 : 2;
}

void copy_row(const Linear& linear, const std::uint8_t* from, int from_lane, std::uint8_t* to,
              int to_lane) {
    const WeightFormat& f = *linear.format;
    if (f.is_float()) {
        for (int k = 0; k < linear.num_in; k += f.group) {
            const std::size_t at = float_offset(f, k);
            if (f.scales == Scales::Single)
                copy_lane(from + at - kLine, from_lane, to + at - kLine, to_lane, 4, 1);
            copy_lane(from + at, from_lane, to + at, to_lane, f.bits / 8,
                      std::min(f.group, linear.num_in - k));
        }
        return;
    }
    const std::size_t codes = codes_nbytes(f), number = number_nbytes(f.scales),
                      factors = factors_nbytes(f.scales),
                      scales = unit_nbytes(f) - codes;
    for (int u = 0; u < linear.num_in / kUnit; ++u) {
        const std::size_t at = unit_offset(f, u);
        copy_lane(from + at, from_lane, to + at, to_lane, 4, codes / kLine);
        copy_lane(from + at + codes, from_lane, to + at + codes, to_lane, number,
                  scales / (kTile * number));
        if (factors > 0 && u % 8 == 0)
            copy_lane(from + at - factors, from_lane, to + at - factors, to_lane, 2, factors / 32);
    }
}

// A row's groups, as read(g) gives them, to lane `lane` of a tile.
template <class Read>
void write_row(const Linear& linear, std::uint8_t* tile, int lane, const Read& read) {
    const WeightFormat& f = *linear.format;
    const int parts = kUnit / f.group;
    for (int g = 0; g < linear.num_in / f.group; ++g)
        write_group(f, tile + unit_offset(f, g / parts), g % parts, lane, read(g));
}

void write_integers(const Linear& linear, std::uint8_t* tile, int lane, const std::uint8_t* row) {
    const WeightFormat& f = *linear.format;
    const int groups = f.block / f.group;
    write_row(linear, tile, lane, [&](int g) {
        return f.read(row + static_cast<std::size_t>(g / groups) * f.block_nbytes, g % groups);
    });
    if (!is_super(f.scales)) return;
    const int nbytes = factors_nbytes(f.scales);
    for (int u = 0; u < linear.num_in / kUnit; u += kSuper / kUnit, row += f.block_nbytes) {
        std::uint8_t* at = tile + unit_offset(f, u) - nbytes;
        put_half(at, lane, half_at(row + f.factors_at));
        if (f.scales == Scales::SuperSigned) continue;
        const int minimum = half_at(row + f.factors_at + 2) ^ 0x8000;  // minima are subtracted
        put_half(at + 32, lane, static_cast<std::uint16_t>(minimum));
    }
}

void write_floats(const Linear& linear, std::uint8_t* tile, int lane, const std::uint8_t* row) {
    const std::size_t size = linear.format->bits / 8;
    for (int k = 0; k < linear.num_in; ++k)
        std::memcpy(tile + float_offset(*linear.format, k) + lane * size, row + k * size, size);
}

void check_width(const WeightFormat& f, int num_in) {
    const int unit = std::max(f.block, f.is_float() ? kTile : kGroup);
    if (num_in <= 0 || num_in % unit != 0)
        throw std::invalid_argument("width " + std::to_string(num_in) + " is not a multiple of " +
                                    std::to_string(unit));
}

// Calls write(tile, lane, row) for every row, in parallel. Packing happens once, so it does without
// the pool and its rules.
template <class Write>
void fill_rows(Packed& packed, const float* bias, int num_threads, const Write& write) {
    constexpr int least = 64;  // fewer tiles are packed faster by one thread
    const Linear& linear = packed.linear;
    const int num_out = linear.num_out, count = linear.num_tiles();
    const int threads = std::max(1, std::min(num_threads, count / least));
    const auto part = [&](int thread) {
        const Part tiles(count, thread, threads);
        for (int row = tiles.first * kTile; row < std::min(tiles.stop * kTile, num_out); ++row)
            write(linear, packed.memory.as<std::uint8_t>() + row / kTile * linear.tile_nbytes,
                  row % kTile, row);
    };
    {
        std::vector<std::jthread> others;
        for (int thread = 1; thread < threads; ++thread) others.emplace_back(part, thread);
        part(0);
    }
    if (bias) std::copy_n(bias, num_out, packed.bias.as<float>());
}

template <class Write>
Packed pack_rows(const WeightFormat& format, int num_out, int num_in, const float* bias,
                 int num_threads, const Write& write) {
    Packed packed = blank(format, num_out, num_in, bias != nullptr);
    fill_rows(packed, bias, num_threads, write);
    return packed;
}

}  // namespace

Buffer weight_memory(std::size_t nbytes) {
    static Arena arena;
    return arena.take(nbytes);
}

std::size_t stored_row_nbytes(const WeightFormat& format, int num_in) {
    check_width(format, num_in);
    return static_cast<std::size_t>(num_in / format.block) * format.block_nbytes;
}

Packed blank(const WeightFormat& format, int num_out, int num_in, bool has_bias, bool is_apart) {
    check_width(format, num_in);
    const auto memory = [&](std::size_t nbytes) {
        return is_apart ? Buffer(nbytes) : weight_memory(nbytes);
    };
    Packed packed;
    packed.linear = {&format, num_out, num_in, tile_nbytes(format, num_in)};
    Linear& linear = packed.linear;
    packed.memory = memory(linear.num_tiles() * linear.tile_nbytes);
    linear.tiles = packed.memory.as<std::uint8_t>();
    if (has_bias) {
        packed.bias = memory(linear.num_tiles() * kTile * sizeof(float));
        linear.bias = packed.bias.as<float>();
    }
    return packed;
}

Packed pack(const WeightFormat& format, int num_out, int num_in, const std::uint8_t* rows,
            const float* bias, int num_threads) {
    if (format.is_flat() || format.scales == Scales::Single)
        throw std::invalid_argument(std::string(format.name) + " has no stored blocks");
    const std::size_t row_nbytes = stored_row_nbytes(format, num_in);
    const auto write = format.is_float() ? write_floats : write_integers;
    return pack_rows(format, num_out, num_in, bias, num_threads,
                     [&](const Linear& linear, std::uint8_t* tile, int lane, int row) {
                         write(linear, tile, lane, rows + row * row_nbytes);
                     });
}

namespace {

Packed pack_float8(const WeightFormat& format, int num_out, int num_in, const Codes& source,
                   const float* bias, int num_threads) {
    if (source.mins || source.group != format.group)
        throw std::invalid_argument(std::string(format.name) + " has no tiles for such codes");
    const int num_scales = (num_in + format.group - 1) / format.group;
    return pack_rows(format, num_out, num_in, bias, num_threads,
                     [&](const Linear& linear, std::uint8_t* tile, int lane, int row) {
                         const std::size_t first = static_cast<std::size_t>(row) * num_in;
                         write_floats(linear, tile, lane,
                                      reinterpret_cast<const std::uint8_t*>(source.codes + first));
                         const float* scales = source.scales + std::size_t(row) * num_scales;
                         for (int k = 0; k < num_in; k += format.group)
                             std::memcpy(tile + float_offset(format, k) - kLine + 4 * lane,
                                         scales + k / format.group, 4);
                     });
}

}  // namespace

Packed pack(const WeightFormat& format, int num_out, int num_in, const Codes& source,
            const float* bias, int num_threads) {
    if (format.scales == Scales::Single)
        return pack_float8(format, num_out, num_in, source, bias, num_threads);
    const bool has_min = has_pair(format.scales);
    if (!(has_min || format.scales == Scales::Half) || format.values ||
        has_min != (source.mins != nullptr))
        throw std::invalid_argument(std::string(format.name) + " has no tiles for such codes");
    if (source.group <= 0 || source.group % format.group || num_in % source.group)
        throw std::invalid_argument("groups must be multiples of " + std::to_string(format.group));
    const std::size_t num_scales = num_in / source.group;
    return pack_rows(format, num_out, num_in, bias, num_threads,
                     [&](const Linear& linear, std::uint8_t* tile, int lane, int row) {
                         write_row(linear, tile, lane, [&](int g) {
                             const std::size_t k = static_cast<std::size_t>(g) * format.group;
                             const std::size_t s = row * num_scales + k / source.group;
                             StoredGroup group{};
                             const std::int8_t* codes =
                                 source.codes + row * std::size_t(num_in) + k;
                             for (int i = 0; i < format.group; ++i)
                                 group.codes[i] = static_cast<std::uint8_t>(codes[i] + format.zero);
                             group.scale = float_to_half(source.scales[s]);
                             if (has_min) group.minimum = float_to_half(source.mins[s]);
                             return group;
                         });
                     });
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
            low[i] = source.is_even ? 0.0f : static_cast<float>(piece * source.limit);
            high[i] = low[i] + static_cast<float>(source.limit);
        }
    }
    first[num_groups] = i;
    packed.flat = std::make_unique<const Flattening>(
        Flattening{num_in, packed.linear.num_in, static_cast<float>(source.limit), inverse, from,
                   low, high, first});
    packed.linear.flat = packed.flat.get();
}

// Of one output: the codes of all its places, then the scale and the offset at the tile's head.
void write_flat(const Linear& linear, std::uint8_t* tile, int lane, const FlatCodes& source,
                int row) {
    const Flattening& flat = *linear.flat;
    const std::int8_t* codes = source.codes + static_cast<std::size_t>(row) * flat.num_in;
    const int num_places = flat.num_in + flat.first[flat.num_in / kGroup];
    const int mask = linear.format->bits == 4 ? 15 : 255;
    std::int32_t offset = 0;
    write_row(linear, tile, lane, [&](int g) {
        StoredGroup group{};
        for (int i = 0, p = g * kGroup; i < kGroup && p < num_places; ++i, ++p) {
            const int code = codes[p < flat.num_in ? p : flat.source[p - flat.num_in]];
            group.codes[i] = static_cast<std::uint8_t>(code & mask);
            offset -= kCodeZero * code;
        }
        return group;
    });
    std::memcpy(tile + 4 * lane, source.scales + row, 4);
    std::memcpy(tile + 64 + 4 * lane, &offset, 4);
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
    if (source.limit < 1 || source.limit > 127)
        throw std::invalid_argument("the limit of flattened codes must be 1 to 127");
    const int most = format.bits == 4 ? 7 : 127;
    for (std::size_t i = 0; i < std::size_t(num_out) * num_in; ++i)
        if (source.codes[i] < -most || source.codes[i] > most)
            throw std::invalid_argument("a code is not within -" + std::to_string(most) + ".." +
                                        std::to_string(most));
    Packed packed = blank(format, num_out, static_cast<int>(wide), bias != nullptr);
    place_inputs(packed, num_in, source);
    fill_rows(packed, bias, num_threads,
              [&](const Linear& linear, std::uint8_t* tile, int lane, int row) {
                  write_flat(linear, tile, lane, source, row);
              });
    return packed;
}

bool flattens_alike(const Linear& a, const Linear& b) {
    if (!a.flat || !b.flat) return a.flat == b.flat;
    const Flattening &x = *a.flat, &y = *b.flat;
    const int num_more = x.num_wide - x.num_in;
    return x.num_in == y.num_in && x.num_wide == y.num_wide && x.limit == y.limit &&
           std::equal(x.inverse, x.inverse + x.num_in, y.inverse) &&
           std::equal(x.source, x.source + num_more, y.source) &&
           std::equal(x.low, x.low + num_more, y.low) &&
           std::equal(x.high, x.high + num_more, y.high);
}

Packed gather_rows(const Linear& linear, std::span<const std::int64_t> rows) {
    Packed packed = blank(*linear.format, static_cast<int>(rows.size()), linear.num_in,
                          linear.bias != nullptr);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] < 0 || rows[i] >= linear.num_out)
            throw std::invalid_argument("token id " + std::to_string(rows[i]) +
                                        " is outside the vocabulary");
        const std::size_t row = static_cast<std::size_t>(rows[i]);
        copy_row(linear, linear.tiles + row / kTile * linear.tile_nbytes,
                 static_cast<int>(row % kTile),
                 packed.memory.as<std::uint8_t>() + i / kTile * linear.tile_nbytes,
                 static_cast<int>(i % kTile));
        if (linear.bias) packed.bias.as<float>()[i] = linear.bias[row];
    }
    return packed;
}

namespace {

void unpack_floats(const Linear& linear, const std::uint8_t* tile, int lane, float* out) {
    const WeightFormat& f = *linear.format;
    for (int k = 0; k < linear.num_in; ++k) {
        const std::uint8_t* at = tile + float_offset(f, k) + lane * (f.bits / 8);
        if (f.tile == Tile::F8) {
            float scale;
            std::memcpy(&scale, tile + float_offset(f, k / f.group * f.group) - kLine + 4 * lane, 4);
            out[k] = 256.0f * small_e4m3_to_float(*at) * scale;
        } else if (f.tile == Tile::F32) {
            std::memcpy(out + k, at, 4);
        } else {
            out[k] = f.tile == Tile::F16 ? half_to_float(half_at(at)) : bfloat_to_float(half_at(at));
        }
    }
}

struct Grid {
    float scale, minimum;
};

// That of a group, part `part` of unit u.
Grid grid_of(const WeightFormat& f, const std::uint8_t* tile, int u, int part, int lane) {
    const std::size_t at = unit_offset(f, u);
    const std::uint8_t* scales = tile + at + codes_nbytes(f) + part * scales_nbytes(f.scales);
    const std::uint8_t* factors =
        tile + unit_offset(f, u / 8 * 8) - factors_nbytes(f.scales) + 2 * lane;
    Grid grid{0.0f, 0.0f};
    switch (f.scales) {
        case Scales::Channel: std::memcpy(&grid.scale, tile + 4 * lane, 4); return grid;
        case Scales::Exponent: return {exponent_to_float(scales[lane]), 0.0f};
        case Scales::SuperSigned: {
            const int scale = static_cast<std::int8_t>(scales[lane]);
            return {half_to_float(half_at(factors)) * static_cast<float>(scale), 0.0f};
        }
        case Scales::SuperMin:
        case Scales::SuperNibbles: {
            const bool is_byte = f.scales == Scales::SuperMin;
            const int scale = is_byte ? scales[lane] : scales[lane] & 15,
                      minimum = is_byte ? scales[kTile + lane] : scales[lane] >> 4;
            return {half_to_float(half_at(factors)) * static_cast<float>(scale),
                    half_to_float(half_at(factors + 32)) * static_cast<float>(minimum)};
        }
        default:
            grid.scale = half_to_float(half_at(scales + 2 * lane));
            if (has_pair(f.scales)) grid.minimum = half_to_float(half_at(scales + 32 + 2 * lane));
            if (f.scales == Scales::HalfZero) grid.minimum *= grid.scale;
            return grid;
    }
}

}  // namespace

void unpack_row(const Linear& linear, int row, float* out) {
    const WeightFormat& f = *linear.format;
    const std::uint8_t* tile = linear.tiles + row / kTile * linear.tile_nbytes;
    const int lane = row % kTile, parts = kUnit / f.group;
    if (f.is_float()) return unpack_floats(linear, tile, lane, out);
    for (int g = 0; g < linear.num_in / f.group; ++g) {
        const std::uint8_t* unit = tile + unit_offset(f, g / parts);
        const Grid grid = grid_of(f, tile, g / parts, g % parts, lane);
        for (int i = 0; i < f.group; ++i) {
            int code = read_code(f, unit, lane, g % parts * f.group + i);
            code = f.values ? f.values[code] : code - f.zero;
            if (f.is_flat() && code >= 1 << (f.bits - 1)) code -= 1 << f.bits;
            *out++ = grid.scale * static_cast<float>(code) + grid.minimum;
        }
    }
}

}  // namespace forerun
