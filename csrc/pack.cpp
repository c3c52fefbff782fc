#include "pack.h"

#include <algorithm>
#include <cstring>
#include <ranges>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "half.h"
#include "pool.h"

namespace forerun {
namespace {

constexpr int kSuper = 256;  // values of a K block

// One group of one output: codes, and fp16 scale and minimum (or their bytes, Q4K).
struct Group {
    std::uint8_t codes[kGroup];
    std::uint16_t scale, minimum;
};

std::uint16_t half_at(const std::uint8_t* p) {
    std::uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

struct Format {
    WeightFormat kind;
    int block, nbytes;  // values and bytes of a stored block
};

Format format_of(Stored type) {
    switch (type) {
        case Stored::F32: return {WeightFormat::F32, 1, 4};
        case Stored::F16: return {WeightFormat::F16, 1, 2};
        case Stored::BF16: return {WeightFormat::BF16, 1, 2};
        case Stored::Q4_0: return {WeightFormat::Q4, 32, 18};
        case Stored::Q4_1: return {WeightFormat::Q4M, 32, 20};
        case Stored::Q5_0: return {WeightFormat::Q5, 32, 22};
        case Stored::Q5_1: return {WeightFormat::Q5M, 32, 24};
        case Stored::Q8_0: return {WeightFormat::Q8, 32, 34};
        case Stored::Q4_K: return {WeightFormat::Q4K, kSuper, 144};
        case Stored::Q5_K: return {WeightFormat::Q5M, kSuper, 176};
        case Stored::Q6_K: return {WeightFormat::Q6, kSuper, 210};
    }
    throw std::invalid_argument("tensor type " + std::to_string(static_cast<int>(type)) +
                                " has no kernel");
}

// Inputs per group, bytes of its codes, bytes of its scales.
struct Layout {
    int group, codes_nbytes, scales_nbytes;
};

Layout layout_of(WeightFormat kind) {
    switch (kind) {
        case WeightFormat::F32: return {1, 64, 0};
        case WeightFormat::F16:
        case WeightFormat::BF16: return {1, 32, 0};
        case WeightFormat::Q4:
        case WeightFormat::Q4K: return {32, 256, 32};
        case WeightFormat::Q4M: return {32, 256, 64};
        case WeightFormat::Q5: return {32, 384, 32};
        case WeightFormat::Q5M: return {32, 384, 64};
        case WeightFormat::Q6: return {16, 192, 32};
        case WeightFormat::Q8: return {32, 512, 32};
    }
    return {};
}

std::size_t tile_nbytes(WeightFormat kind, int num_in) {
    const Layout layout = layout_of(kind);
    const std::size_t groups = static_cast<std::size_t>(num_in / layout.group);
    const std::size_t factors =
        kind == WeightFormat::Q4K ? static_cast<std::size_t>(num_in / kSuper) * 64 : 0;
    return groups * static_cast<std::size_t>(layout.codes_nbytes + layout.scales_nbytes) + factors;
}

// Where group g of a tile starts.
std::size_t group_offset(WeightFormat kind, int g) {
    const Layout layout = layout_of(kind);
    const std::size_t factors = kind == WeightFormat::Q4K ? static_cast<std::size_t>(g / 8 + 1) * 64 : 0;
    return static_cast<std::size_t>(g) *
               static_cast<std::size_t>(layout.codes_nbytes + layout.scales_nbytes) +
           factors;
}

// Blocks of 32: low nibbles are values 0..15, high nibbles 16..31; `tops` holds a fifth bit each.
void read_nibbles(const std::uint8_t* nibbles, const std::uint8_t* tops, Group& out) {
    for (int i = 0; i < 16; ++i) {
        out.codes[i] = nibbles[i] & 15;
        out.codes[i + 16] = nibbles[i] >> 4;
    }
    if (!tops) return;
    std::uint32_t fifth;
    std::memcpy(&fifth, tops, 4);
    for (int i = 0; i < 32; ++i) out.codes[i] |= static_cast<std::uint8_t>(((fifth >> i) & 1) << 4);
}

// The 6-bit scale and minimum of sub-block j of a K block, from its 12 bytes.
void read_k_scales(const std::uint8_t* s, int j, int& scale, int& minimum) {
    if (j < 4) {
        scale = s[j] & 63;
        minimum = s[j + 4] & 63;
    } else {
        scale = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
        minimum = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
    }
}

// K blocks of 4 and 5 bits: sub-blocks 2i and 2i+1 share 32 bytes of nibbles, sub-block j's fifth
// bits are bit j.
void read_k_codes(const std::uint8_t* nibbles, const std::uint8_t* tops, int j, Group& out) {
    for (int i = 0; i < 32; ++i) {
        const int code = (nibbles[32 * (j / 2) + i] >> (4 * (j % 2))) & 15;
        out.codes[i] = static_cast<std::uint8_t>(code | (tops ? ((tops[i] >> j) & 1) << 4 : 0));
    }
}

// Values first..first+count of a Q6_K block, which lie in one run of 32.
void read_q6_codes(const std::uint8_t* block, int first, int count, Group& out) {
    const int half = first / 128, quarter = first % 128 / 32, lane = first % 32;
    const std::uint8_t* lows = block + 64 * half + 32 * (quarter % 2) + lane;
    const std::uint8_t* tops = block + 128 + 32 * half + lane;
    for (int i = 0; i < count; ++i) {
        const int low = (lows[i] >> (4 * (quarter / 2))) & 15, top = (tops[i] >> (2 * quarter)) & 3;
        out.codes[i] = static_cast<std::uint8_t>(low | (top << 4));
    }
}

// Group g of a stored row.
Group read_group(Stored type, const Format& format, const std::uint8_t* row, int g) {
    const int group = layout_of(format.kind).group, first = g * group;
    const std::uint8_t* block =
        row + static_cast<std::size_t>(first / format.block) * format.nbytes;
    const int j = first % format.block / 32;
    Group out{};
    int scale, minimum;
    switch (type) {
        case Stored::Q4_0: read_nibbles(block + 2, nullptr, out); break;
        case Stored::Q4_1: read_nibbles(block + 4, nullptr, out); break;
        case Stored::Q5_0: read_nibbles(block + 6, block + 2, out); break;
        case Stored::Q5_1: read_nibbles(block + 8, block + 4, out); break;
        case Stored::Q8_0: std::memcpy(out.codes, block + 2, 32); break;
        case Stored::Q4_K:
            read_k_scales(block + 4, j, scale, minimum);
            read_k_codes(block + 16, nullptr, j, out);
            out.scale = static_cast<std::uint16_t>(scale);
            out.minimum = static_cast<std::uint16_t>(minimum);
            return out;
        case Stored::Q5_K:
            read_k_scales(block + 4, j, scale, minimum);
            read_k_codes(block + 48, block + 16, j, out);
            out.scale = float_to_half(half_to_float(half_at(block)) * static_cast<float>(scale));
            out.minimum =
                float_to_half(half_to_float(half_at(block + 2)) * static_cast<float>(-minimum));
            return out;
        case Stored::Q6_K:
            read_q6_codes(block, first % kSuper, group, out);
            out.scale = float_to_half(
                half_to_float(half_at(block + 208)) *
                static_cast<float>(static_cast<std::int8_t>(block[192 + first % kSuper / 16])));
            return out;
        default: break;
    }
    out.scale = half_at(block);
    if (type == Stored::Q4_1 || type == Stored::Q5_1) out.minimum = half_at(block + 2);
    return out;
}

void put_half(std::uint8_t* at, int lane, std::uint16_t h) { std::memcpy(at + 2 * lane, &h, 2); }

// Four bytes of lane `lane` in a 64-byte line.
template <class Byte>
void put_word(std::uint8_t* line, int lane, const Byte& byte) {
    std::uint8_t word[4];
    for (int i = 0; i < 4; ++i) word[i] = static_cast<std::uint8_t>(byte(i));
    std::memcpy(line + 4 * lane, word, 4);
}

// Writes one output's group into lane `lane` of its tile.
void write_group(WeightFormat kind, const Layout& layout, std::uint8_t* at, int lane, const Group& group) {
    const std::uint8_t* c = group.codes;
    if (kind == WeightFormat::Q8) {
        for (int line = 0; line < 8; ++line)
            put_word(at + 64 * line, lane, [&](int i) { return c[4 * line + i]; });
    } else {
        const int lines = layout.group / 8;
        for (int line = 0; line < lines; ++line, c += 8)
            put_word(at + 64 * line, lane, [&](int i) { return (c[i] & 15) | (c[4 + i] << 4); });
        c = group.codes;
        if (layout.codes_nbytes > 64 * lines)
            for (int line = 0; line < layout.group / 16; ++line, c += 16)
                put_word(at + 64 * (lines + line), lane, [&](int i) {
                    return c[i] >> 4 | c[4 + i] >> 4 << 2 | c[8 + i] >> 4 << 4 |
                           c[12 + i] >> 4 << 6;
                });
    }
    std::uint8_t* scales = at + layout.codes_nbytes;
    if (kind == WeightFormat::Q4K) {
        scales[lane] = static_cast<std::uint8_t>(group.scale);
        scales[kTile + lane] = static_cast<std::uint8_t>(group.minimum);
        return;
    }
    put_half(scales, lane, group.scale);
    if (layout.scales_nbytes == 64) put_half(scales + 32, lane, group.minimum);
}

int read_code(WeightFormat kind, const std::uint8_t* at, int lane, int i) {
    const Layout layout = layout_of(kind);
    const int step = i / 4, byte = 4 * lane + i % 4;
    if (kind == WeightFormat::Q8) return static_cast<std::int8_t>(at[64 * step + byte]);
    const int low = (at[64 * (step / 2) + byte] >> (4 * (step % 2))) & 15;
    if (layout.codes_nbytes == 8 * layout.group) return low;
    return low | (((at[8 * layout.group + 64 * (step / 4) + byte] >> (2 * (step % 4))) & 3) << 4);
}

void write_integer_row(Stored type, const std::uint8_t* row, const Linear& linear,
                       std::uint8_t* tile, int lane) {
    const Format format = format_of(type);
    const Layout layout = layout_of(linear.format);
    for (int g = 0; g < linear.num_in / layout.group; ++g)
        write_group(linear.format, layout, tile + group_offset(linear.format, g), lane,
                    read_group(type, format, row, g));
    if (linear.format != WeightFormat::Q4K) return;
    for (int super = 0; super < linear.num_in / kSuper; ++super) {
        const std::uint8_t* block = row + static_cast<std::size_t>(super) * 144;
        std::uint8_t* at = tile + group_offset(linear.format, 8 * super) - 64;
        put_half(at, lane, half_at(block));
        put_half(
            at + 32, lane,
            static_cast<std::uint16_t>(half_at(block + 2) ^ 0x8000u));  // minima are subtracted
    }
}

void write_float_row(const std::uint8_t* row, const Linear& linear, std::uint8_t* tile, int lane) {
    const std::size_t size = linear.format == WeightFormat::F32 ? 4 : 2;
    for (std::size_t k = 0; k < static_cast<std::size_t>(linear.num_in); ++k)
        std::memcpy(tile + (k * kTile + static_cast<std::size_t>(lane)) * size, row + k * size,
                    size);
}

Buffer from_arena(std::size_t nbytes) {
    static Arena arena;
    return arena.take(nbytes);
}

void check_width(int num_in, int unit) {
    if (num_in <= 0 || num_in % unit != 0)
        throw std::invalid_argument("width " + std::to_string(num_in) + " is not a multiple of " +
                                    std::to_string(unit));
}

// Calls work(index) for 0..count. Packing happens once, so it does without the pool and its rules.
template <class Work>
void in_parallel(int count, int num_threads, const Work& work) {
    constexpr int least = 64;  // fewer are not worth a thread
    const int threads = std::max(1, std::min(num_threads, count / least));
    std::vector<std::jthread> others;
    const auto part = [&](int thread) {
        for (const Part p(count, thread, threads); int i : std::views::iota(p.first, p.stop))
            work(i);
    };
    for (int thread = 1; thread < threads; ++thread) others.emplace_back(part, thread);
    part(0);
}

}  // namespace

std::size_t stored_row_nbytes(Stored type, int num_in) {
    const Format format = format_of(type);
    const int unit = std::max(format.block, format.kind <= WeightFormat::BF16 ? kTile : kGroup);
    check_width(num_in, unit);
    return static_cast<std::size_t>(num_in / format.block) *
           static_cast<std::size_t>(format.nbytes);
}

Packed blank(WeightFormat kind, int num_out, int num_in, bool has_bias) {
    const int unit = kind == WeightFormat::Q4K ? kSuper : kind <= WeightFormat::BF16 ? kTile : kGroup;
    check_width(num_in, unit);
    Packed packed;
    Linear& linear = packed.linear;
    linear.format = kind;
    linear.num_out = num_out;
    linear.num_in = num_in;
    linear.tile_nbytes = tile_nbytes(kind, num_in);
    const std::size_t num_tiles = static_cast<std::size_t>(linear.num_tiles());
    packed.memory = from_arena(num_tiles * linear.tile_nbytes);
    linear.tiles = packed.memory.as<std::uint8_t>();
    if (has_bias) {
        packed.bias = Buffer(num_tiles * kTile * sizeof(float));
        linear.bias = packed.bias.as<float>();
    }
    return packed;
}

Packed pack(Stored type, int num_out, int num_in, const std::uint8_t* rows, const float* bias,
            int num_threads) {
    const std::size_t row_nbytes = stored_row_nbytes(type, num_in);
    Packed packed = blank(format_of(type).kind, num_out, num_in, bias != nullptr);
    const Linear& linear = packed.linear;
    in_parallel(linear.num_tiles(), num_threads, [&](int tile) {
        for (int row = tile * kTile; row < std::min((tile + 1) * kTile, num_out); ++row) {
            const std::uint8_t* source = rows + static_cast<std::size_t>(row) * row_nbytes;
            std::uint8_t* to = packed.memory.as<std::uint8_t>() +
                               static_cast<std::size_t>(tile) * linear.tile_nbytes;
            if (linear.is_float())
                write_float_row(source, linear, to, row % kTile);
            else
                write_integer_row(type, source, linear, to, row % kTile);
        }
    });
    if (bias)
        std::memcpy(packed.bias.as<float>(), bias,
                    static_cast<std::size_t>(num_out) * sizeof(float));
    return packed;
}

void unpack_row(const Linear& linear, int row, float* out) {
    const std::uint8_t* tile =
        linear.tiles + static_cast<std::size_t>(row / kTile) * linear.tile_nbytes;
    const Layout layout = layout_of(linear.format);
    const int lane = row % kTile;
    if (linear.is_float()) {
        for (int k = 0; k < linear.num_in; ++k) {
            const std::uint8_t* at =
                tile + (static_cast<std::size_t>(k) * kTile + static_cast<std::size_t>(lane)) *
                           (layout.codes_nbytes / kTile);
            if (linear.format == WeightFormat::F32)
                std::memcpy(out + k, at, 4);
            else
                out[k] = linear.format == WeightFormat::F16 ? half_to_float(half_at(at))
                                                  : bfloat_to_float(half_at(at));
        }
        return;
    }
    const int zero = linear.format == WeightFormat::Q4   ? 8
                     : linear.format == WeightFormat::Q5 ? 16
                     : linear.format == WeightFormat::Q6 ? 32
                                               : 0;
    for (int g = 0; g < linear.num_in / layout.group; ++g) {
        const std::uint8_t* at = tile + group_offset(linear.format, g);
        const std::uint8_t* scales = at + layout.codes_nbytes;
        float scale, minimum = 0.0f;
        if (linear.format == WeightFormat::Q4K) {
            const std::uint8_t* factors = tile + group_offset(linear.format, g / 8 * 8) - 64;
            scale = half_to_float(half_at(factors + 2 * lane)) * scales[lane];
            minimum = half_to_float(half_at(factors + 32 + 2 * lane)) * scales[kTile + lane];
        } else {
            scale = half_to_float(half_at(scales + 2 * lane));
            if (layout.scales_nbytes == 64)
                minimum = half_to_float(half_at(scales + 32 + 2 * lane));
        }
        for (int i = 0; i < layout.group; ++i)
            out[g * layout.group + i] =
                scale * static_cast<float>(read_code(linear.format, at, lane, i) - zero) + minimum;
    }
}

}  // namespace forerun
