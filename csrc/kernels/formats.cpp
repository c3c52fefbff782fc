#include "kernels/formats.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "kernels/half.h"
#include "kernels/tile_layout.h"

namespace forerun {

namespace {

// Value i, of 8, 4, 2 or 1 bits, of lane `lane` in lines of 64 bytes: a line holds 4 bytes a lane, and
// value i lies in byte i % 4.
std::size_t byte_of(int bits, int lane, int i) {
    return i / (32 / bits) * kLine + 4 * lane + i % 4;
}
int shift_of(int bits, int i) { return i % (32 / bits) / 4 * bits; }

int bits_at(const std::uint8_t* lines, int bits, int lane, int i) {
    return lines[byte_of(bits, lane, i)] >> shift_of(bits, i) & ((1 << bits) - 1);
}

int read_code(const WeightFormat& f, const std::uint8_t* unit, int lane, int i) {
    const int lows = low_bits(f), tops = f.bits - lows, low = bits_at(unit, lows, lane, i);
    return tops == 0 ? low : low | bits_at(unit + kLine * lows, tops, lane, i) << lows;
}

// Copies what a tile holds of one lane, `nbytes` of each line of 16 lanes.
void copy_lane(const std::uint8_t* from, int from_lane, std::uint8_t* to, int to_lane,
               std::size_t nbytes, std::size_t num_lines) {
    for (std::size_t i = 0; i < num_lines; ++i, from += kTile * nbytes, to += kTile * nbytes)
        std::memcpy(to + to_lane * nbytes, from + from_lane * nbytes, nbytes);
}

// What the numbers of a lane take in the scales of a group: two nibbles are one number.
std::size_t number_nbytes(Scales scales) {
    const bool is_byte = is_super(scales) || scales == Scales::Exponent || scales == Scales::Small;
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
    copy_lane(from, from_lane, to, to_lane, 4, head_nbytes(f.scales) / kLine);
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

}  // namespace

namespace {

Arena& arena() {
    static Arena arena;
    return arena;
}

}  // namespace

Buffer weight_memory(std::size_t nbytes) { return arena().take(nbytes); }
void trim_weight_memory() { arena().trim(); }

void check_width(const WeightFormat& f, int num_in) {
    const int unit = std::max(f.block, f.is_float() ? kTile : kGroup);
    if (num_in <= 0 || num_in % unit != 0)
        throw std::invalid_argument("width " + std::to_string(num_in) + " is not a multiple of " +
                                    std::to_string(unit));
}

std::size_t stored_row_nbytes(const WeightFormat& format, int num_in) {
    check_width(format, num_in);
    return static_cast<std::size_t>(num_in / format.block) * format.block_nbytes;
}

namespace {

// Tiles and, if there is one, a bias, in what memory(nbytes) gives for each.
template <class Memory>
Packed shaped(const WeightFormat& format, int num_out, int num_in, bool has_bias,
              const Memory& memory) {
    check_width(format, num_in);
    Packed packed;
    packed.linear = {&format, num_out, num_in, tile_nbytes(format, num_in)};
    Linear& linear = packed.linear;
    packed.memory = memory(linear.num_tiles() * linear.tile_nbytes);
    linear.tiles = packed.memory.template as<std::uint8_t>();
    if (has_bias) {
        packed.bias = memory(linear.num_tiles() * kTile * sizeof(float));
        linear.bias = packed.bias.template as<float>();
    }
    return packed;
}

}  // namespace

Packed blank(const WeightFormat& format, int num_out, int num_in, bool has_bias, bool is_apart) {
    return shaped(format, num_out, num_in, has_bias, [&](std::size_t nbytes) {
        return is_apart ? Buffer(nbytes) : weight_memory(nbytes);
    });
}

bool reads_alike(const Linear& a, const Linear& b) {
    if (!a.flat || !b.flat) {
        if (a.is_float() || b.is_float()) return a.flat == b.flat;
        const bool has_one = a.order && b.order && a.num_in == b.num_in;
        return a.flat == b.flat &&
               (has_one ? std::equal(a.order, a.order + a.num_in, b.order) : a.order == b.order);
    }
    const Flattening &x = *a.flat, &y = *b.flat;
    const int num_more = x.num_wide - x.num_in;
    return x.num_in == y.num_in && x.num_wide == y.num_wide && x.limit == y.limit &&
           x.uses_hadamard == y.uses_hadamard &&
           std::equal(x.inverse, x.inverse + x.num_in, y.inverse) &&
           std::equal(x.source, x.source + num_more, y.source) &&
           std::equal(x.low, x.low + num_more, y.low) &&
           std::equal(x.high, x.high + num_more, y.high);
}

namespace {

void copy_factors(const Linear& linear, Packed& packed) {
    const int num_in = linear.flat->num_in;
    packed.places = weight_memory(num_in * sizeof(float));
    std::copy_n(linear.flat->inverse, num_in, packed.places.as<float>());
    Flattening flat;
    flat.num_in = flat.num_wide = num_in;
    flat.inverse = packed.places.as<float>();
    packed.flat = std::make_unique<const Flattening>(flat);
    packed.linear.flat = packed.flat.get();
}

}  // namespace

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
    if (linear.is_by_row()) copy_factors(linear, packed);
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

// As StoredGroup has them.
struct GroupNumbers {
    std::uint16_t scale, minimum;
};

// What write_scales (kernels/tile_writer.h) wrote of one output.
GroupNumbers read_scales(const WeightFormat& f, const std::uint8_t* scales, int lane) {
    const std::uint8_t byte = scales[lane];
    switch (f.scales) {
        case Scales::SuperAlone:
        case Scales::Channel: return {0, 0};
        case Scales::SuperNibbles: return {static_cast<std::uint16_t>(byte & 15), static_cast<std::uint16_t>(byte >> 4)};
        case Scales::SuperMin: return {byte, scales[kTile + lane]};
        case Scales::SuperSigned:
        case Scales::Small:
        case Scales::Exponent: return {byte, 0};
        default:
            return {half_at(scales + 2 * lane), has_pair(f.scales) ? half_at(scales + 32 + 2 * lane) : std::uint16_t{0}};
    }
}

// In place of a minimum Scales::HalfZero has minus the zero point.
struct Grid {
    float scale, minimum;
};

// What the numbers of a group mean, given the factors that stand beside it.
Grid grid_of(const WeightFormat& f, const GroupNumbers& group, const Grid& factors) {
    const auto scale = static_cast<float>(group.scale), minimum = static_cast<float>(group.minimum);
    switch (f.scales) {
        case Scales::Channel:
        case Scales::SuperAlone: return {factors.scale, 0.0f};
        case Scales::SuperSigned:
            return {factors.scale * f.step * static_cast<float>(static_cast<std::int8_t>(group.scale)), 0.0f};
        case Scales::SuperMin:
        case Scales::SuperNibbles: return {factors.scale * scale, factors.minimum * minimum};
        case Scales::Exponent: return {exponent_to_float(static_cast<std::uint8_t>(group.scale)), 0.0f};
        case Scales::Small:
            return {256.0f * f.step * small_e4m3_to_float(static_cast<std::uint8_t>(group.scale)) * factors.scale, 0.0f};
        default:
            return {half_to_float(group.scale), has_pair(f.scales) ? half_to_float(group.minimum) : 0.0f};
    }
}

// Those of a group in a tile, part `part` of unit u.
Grid grid_of(const WeightFormat& f, const std::uint8_t* tile, int u, int part, int lane) {
    const std::size_t at = unit_offset(f, u);
    const std::uint8_t* scales = tile + at + codes_nbytes(f) + part * scales_nbytes(f.scales);
    const int nbytes = factors_nbytes(f.scales);
    const std::uint8_t* halves = tile + unit_offset(f, u / 8 * 8) - nbytes + 2 * lane;
    Grid factors{0.0f, 0.0f};
    if (head_nbytes(f.scales) > 0) std::memcpy(&factors.scale, tile + 4 * lane, 4);
    if (nbytes > 0) factors.scale = half_to_float(half_at(halves));
    if (nbytes > 32) factors.minimum = half_to_float(half_at(halves + 32));
    return grid_of(f, read_scales(f, scales, lane), factors);
}

// Those of a block.
Grid factors_of(const WeightFormat& f, const std::uint8_t* block) {
    Grid factors{0.0f, 0.0f};
    if (f.scales == Scales::Small) std::memcpy(&factors.scale, block, 4);
    if (is_super(f.scales)) factors.scale = half_to_float(factor_of(f, block));
    if (factors_nbytes(f.scales) > 32) factors.minimum = -half_to_float(factor_of(f, block, 1));
    return factors;
}

void unpack_in_order(const Linear& linear, int row, float* out) {
    std::vector<float> inputs(linear.num_in);
    Linear plain = linear;
    plain.order = nullptr;
    unpack_row(plain, row, inputs.data());
    for (int k = 0; k < linear.num_in; ++k) out[linear.order[k]] = inputs[k];
}

}  // namespace

void unpack_row(const Linear& linear, int row, float* out) {
    if (linear.order) return unpack_in_order(linear, row, out);
    float* const first = out;
    const WeightFormat& f = *linear.format;
    const std::uint8_t* tile = linear.tiles + row / kTile * linear.tile_nbytes;
    const int lane = row % kTile, parts = kUnit / f.group;
    if (f.is_float()) return unpack_floats(linear, tile, lane, out);
    for (int g = 0; g < linear.num_in / f.group; ++g) {
        const std::uint8_t* unit = tile + unit_offset(f, g / parts);
        Grid grid = grid_of(f, tile, g / parts, g % parts, lane);
        if (f.scales == Scales::HalfZero) grid.minimum *= grid.scale;
        for (int i = 0; i < f.group; ++i) {
            int code = read_code(f, unit, lane, g % parts * f.group + i);
            code = f.values ? f.values[code] : code - f.zero;
            if (f.is_flat() && code >= 1 << (f.bits - 1)) code -= 1 << f.bits;
            *out++ = grid.scale * static_cast<float>(code) + grid.minimum;
        }
    }
    if (!linear.is_by_row()) return;
    for (int distance = 1; linear.flat->uses_hadamard && distance < kGroup; distance *= 2)
        for (int k = 0; k < linear.num_in; ++k)
            if (!(k & distance)) {
                const float low = first[k], high = first[k + distance];
                first[k] = low + high;
                first[k + distance] = low - high;
            }
    for (int k = 0; k < linear.num_in; ++k) first[k] *= linear.flat->inverse[k];
}

int scale_group(const WeightFormat& f) { return f.scales == Scales::SuperAlone ? f.block : f.group; }

double bits_per_weight(const WeightFormat& f) {
    constexpr int num_in = kSuper;  // of one tile
    return 8.0 * static_cast<double>(tile_nbytes(f, num_in) - head_nbytes(f.scales)) / (kTile * num_in);
}

void unpack_blocks(const WeightFormat& f, std::size_t num_blocks, const std::uint8_t* block, std::uint8_t* codes,
                   float* scales, float* offsets) {
    if (!f.read) throw std::invalid_argument(std::string(f.name) + " has no stored blocks of codes");
    for (std::size_t b = 0; b < num_blocks; ++b, block += f.block_nbytes) {
        const Grid factors = factors_of(f, block);
        for (int j = 0; j < f.block / f.group; ++j, codes += f.group) {
            const StoredGroup group = f.read(block, j);
            for (int i = 0; i < f.group; ++i) {
                const int code = f.values ? f.values[group.codes[i]] : group.codes[i] - f.zero;
                codes[i] = static_cast<std::uint8_t>(code);
            }
            if (j * f.group % scale_group(f)) continue;
            const Grid grid = grid_of(f, {group.scale, group.minimum}, factors);
            *scales++ = grid.scale;
            if (offsets) *offsets++ = grid.minimum;
        }
    }
}

}  // namespace forerun
