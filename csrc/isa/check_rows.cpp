// Checks of linear layers, and of what is done with rows, one by one.

#include <set>

#include "isa/check.h"

namespace forerun {
namespace {

struct RowsSample {
    std::vector<float> x;
    std::vector<std::int8_t> q;
    std::vector<float> scale, sum;
    std::vector<std::int32_t> half_sum;
    Rows rows;

    RowsSample(int num_rows, int width, int wide = 0)
        : x(numbers(num_rows * width)),
          q((num_rows + kRowsAside) * std::max(width, wide)),
          scale(q.size() / kGroup),
          sum(scale.size()),
          half_sum(2 * scale.size()),
          rows{width,        x.data(),        q.data(),             scale.data(),
               sum.data(),   half_sum.data(), std::max(width, wide)} {}
};

// Random bytes, but every second one leaves the exponent of a float, bf16 or fp16 below that of 2.
std::vector<std::uint8_t> weights(std::size_t nbytes) {
    std::vector<std::uint8_t> bytes(nbytes);
    std::uint32_t seed = 7;
    for (std::size_t i = 0; i < nbytes; ++i) {
        seed = seed * 1664525u + 1013904223u;
        bytes[i] = static_cast<std::uint8_t>(seed >> 24 & (i % 2 ? 0xBFu : 0xFFu));
    }
    return bytes;
}

constexpr int kNumRows = 21;  // 16 + 5
constexpr int kFewRows[] = {1, 2, 3, 4, 6, 7, 8};  // and all others that a kernel may take at once

// A layer for flattened rows of `num_in` inputs, some of which have more than one place.
Packed flat_layer(const WeightFormat& format, int num_out, int num_in, int limit, bool uses_hadamard = false) {
    const bool is_by_row = limit == 0;
    const int bits = format.bits;
    std::vector<std::int8_t> codes(num_out * num_in);
    const std::vector<std::uint8_t> bytes = weights(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
        const int most = (1 << (bits - 1)) - 1, least = bits == 4 ? -8 : -most;
        codes[i] = static_cast<std::int8_t>(i % 5 ? bytes[i] % (most - least + 1) + least : most);
    }
    std::vector<std::int32_t> pieces(num_in, 1);
    for (int j = 0; j < num_in && !is_by_row; j += 7) pieces[j] = 1 + j % 4;
    std::vector<float> scales = numbers(num_out, 8), inverse = numbers(num_in, 9);
    for (float& factor : inverse)
        factor = static_cast<float>(is_by_row ? 1 : limit) * (std::abs(factor) + 0.1f);
    return pack(format, num_out, num_in,
                FlatCodes{codes.data(), scales.data(), inverse.data(), pieces.data(), limit, uses_hadamard},
                nullptr, 1);
}

void check_flat_linear(const Kernels& kernels, const WeightFormat& format, Results& results) {
    constexpr int num_tiles = 3, stride = num_tiles * kTile + 1;
    for (const int limit : {127, 0}) {
        const int num_in = limit ? kGroup : 5 * kGroup;  // more than tiles have unpacked at once
        const Packed layer = flat_layer(format, num_tiles * kTile, num_in, limit);
        RowsSample sample(kNumRows, num_in, layer.flat->num_wide);
        for (int row = 0; row < kNumRows; ++row)
            quantize(portable::kernels, layer.linear, sample.x.data() + row * num_in, sample.rows,
                     row, 0, num_in);
        std::vector<float> out = numbers(kNumRows * stride, 5);
        kernels.linear(layer.linear, 0, num_tiles, sample.rows, 0, kNumRows,
                       {out.data(), stride, false, 1.0f});
        for (const int few : kFewRows)
            kernels.linear(layer.linear, 0, num_tiles, sample.rows, 8 - few, few,
                           {out.data(), stride, true, 0.3f});
        results.note(out);
    }
}

}  // namespace

void check_pack_rows(const Kernels& kernels, Results& results) {
    const std::vector<std::uint8_t> stored = weights(kTile * 2 * 256);
    for (const WeightFormat& format : weight_formats()) {
        if (format.is_float() || format.is_flat()) continue;
        const int num_in = is_super(format.scales) ? 256 : 64;
        Packed packed = blank(format, 2 * kTile - 1, num_in, false);
        const std::size_t row_nbytes = stored_row_nbytes(format, num_in);
        auto* const tiles = packed.memory.as<std::uint8_t>();
        for (int tile = 0; tile < 2; ++tile)
            kernels.pack_rows(packed.linear, kTile - tile, stored.data() + 13 * tile, row_nbytes,
                              tiles + tile * packed.linear.tile_nbytes);
        results.note(std::vector<std::uint8_t>(tiles, tiles + packed.memory.nbytes()));
    }
}

void check_linear(const Kernels& kernels, Results& results) {
    constexpr int num_rows = kNumRows, num_tiles = 2, stride = num_tiles * kTile + 1;
    const std::vector<float> bias = numbers(num_tiles * kTile, 3);
    const std::vector<std::uint8_t> tiles = weights(num_tiles * 256 * kTile * sizeof(float));
    std::set<Tile> checked;
    for (const WeightFormat& format : weight_formats()) {
        if (!checked.insert(format.tile).second) continue;  // the same kernel, another table
        if (format.is_flat()) {
            check_flat_linear(kernels, format, results);
            continue;
        }
        Linear linear;
        linear.format = &format;
        linear.num_out = num_tiles * kTile;
        linear.num_in = format.tile == Tile::F8          ? kFloat8Group + 16
                        : is_super(format.scales)        ? 256
                        : format.is_float()              ? 48
                                                         : 64;
        linear.tile_nbytes = static_cast<std::size_t>(linear.num_in) * kTile * (format.bits > 8 ? 4 : 2);
        linear.tiles = tiles.data();
        RowsSample sample(num_rows, linear.num_in);
        if (!linear.is_float())
            for (int row = 0; row < num_rows; ++row)
                portable::kernels.quantize(sample.x.data() + row * linear.num_in, sample.rows, row,
                                           0, linear.num_in);
        std::vector<float> out = numbers(num_rows * stride, 5);
        kernels.linear(linear, 0, 1, sample.rows, 0, num_rows, {out.data(), stride, false, 1.0f});
        linear.bias = bias.data();
        for (const int few : kFewRows)
            kernels.linear(linear, few % 2, 1, sample.rows, 8 - few, few,
                           {out.data() + few, stride, true, 0.3f});
        results.note(out);
    }
}

void check_quantize(const Kernels& kernels, Results& results) {
    const std::vector<float> x = awkward();
    const int count = static_cast<int>(x.size());
    RowsSample sample(2, count + kGroup);
    kernels.quantize(x.data(), sample.rows, 1, kGroup, count);
    results.note(sample.q);
    results.note(sample.scale);
    results.note(sample.sum);
    results.note(sample.half_sum);
}

void check_flatten(const Kernels& kernels, Results& results) {
    const std::vector<float> x = awkward();
    const int count = static_cast<int>(x.size());
    for (const int limit : {7, 127}) {
        const Packed layer = flat_layer(weight_format("q8_c"), 1, count, limit);
        RowsSample sample(2, count, layer.flat->num_wide);
        kernels.flatten(x.data() + kGroup, *layer.flat, sample.rows, 1, kGroup, count - kGroup);
        kernels.flatten(x.data(), *layer.flat, sample.rows, 0, 0, kGroup);
        results.note(sample.q);
    }
}

void check_flatten_by_row(const Kernels& kernels, Results& results) {
    const std::vector<float> x = awkward();
    const int count = static_cast<int>(x.size()), half = count / 2 / kGroup * kGroup;
    for (const bool uses_hadamard : {false, true})
    for (const int first : {0, half}) {
        const int num_in = first == 0 ? half : count - half;
        const Packed layer = flat_layer(weight_format("q8_c"), 1, num_in, 0, uses_hadamard);
        RowsSample sample(2, num_in);
        kernels.flatten_by_row(x.data() + first, *layer.flat, sample.rows, 1);
        kernels.flatten_by_row(numbers(num_in).data(), *layer.flat, sample.rows, 0);
        results.note(sample.q);
        results.note(sample.scale);
    }
}

void check_norm(const Kernels& kernels, Results& results) {
    constexpr int width = 80;
    const auto x = numbers(width, 2), weight = numbers(width, 3), bias = numbers(width, 4);
    std::vector<float> out(width);
    for (int form = 0; form < 4; ++form) {
        kernels.norm(x.data(), {weight.data(), form % 2 ? bias.data() : nullptr, 1e-5f, form > 1},
                     width, out.data());
        results.note(out);
    }
}

void check_activate(const Kernels& kernels, Results& results) {
    const std::vector<float> gate = awkward(), up = numbers(gate.size(), 2);
    const int count = static_cast<int>(gate.size());
    std::vector<float> out(gate.size());
    for (const Activation activation :
         {Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu,
          Activation::Relu2, Activation::SwigluOai})
        for (const float* other : {up.data(), static_cast<const float*>(nullptr)}) {
            if (activation == Activation::SwigluOai && !other) continue;
            kernels.activate(activation, gate.data(), other, count, out.data());
            results.note(out);
        }
}

void check_gate(const Kernels& kernels, Results& results) {
    const std::vector<float> gate = awkward(), x = numbers(gate.size(), 2);
    std::vector<float> out(gate.size());
    kernels.gate(gate.data(), x.data(), static_cast<int>(gate.size()), out.data());
    results.note(out);
}

void check_rotate(const Kernels& kernels, Results& results) {
    for (const int half : {5, 16, 24, 40}) {
        const std::vector<float> cos = numbers(2 * half, 2), sin = numbers(2 * half, 3);
        std::vector<float> head = numbers(96);
        kernels.rotate({cos.data(), sin.data(), half}, 1, head.data());
        results.note(head);
    }
}

void check_scale(const Kernels& kernels, Results& results) {
    std::vector<float> x = awkward();
    kernels.scale(x.data(), static_cast<int>(x.size()) - kTile, 0.3f);
    results.note(x);
}

void check_cap(const Kernels& kernels, Results& results) {
    std::vector<float> x = awkward();
    for (float& value : x) value *= 20.0f;
    kernels.cap(x.data(), static_cast<int>(x.size()) - kTile, 30.0f);
    results.note(x);
}

void check_exp_sum(const Kernels& kernels, Results& results) {
    std::vector<float> x = awkward();
    const std::vector<float> weight = numbers(x.size(), 2);
    const auto note = [&](const float* from, const float* weights, int count) {
        float largest = 0.0f;
        const float total = kernels.exp_sum(from, weights, count, &largest);
        results.note(std::vector{total, largest});
    };
    for (std::size_t i = 0; i < x.size(); i += kGroup) {
        note(x.data() + i, nullptr, kGroup);
        note(x.data() + i, weight.data(), kTile);
    }
    std::fill_n(x.begin(), kGroup, -kInfinity);
    note(x.data(), nullptr, kGroup);
    x = numbers(8 * kTile);
    note(x.data(), nullptr, 8 * kTile);
    note(x.data(), weight.data(), 8 * kTile);
}

constexpr std::uint64_t kKeys[] = {0, 0x9E3779B97F4A7C15u, ~std::uint64_t{0}};

void check_noise(const Kernels& kernels, Results& results) {
    const std::vector<std::int32_t> ids{0, 1, 7, 151935, 3, 49151, 99, 100, 65536, 2, 1 << 27};
    std::vector<float> out(ids.size());
    for (const std::uint64_t key : kKeys) {
        kernels.noise(key, ids.data(), static_cast<int>(ids.size()), out.data());
        results.note(out);
    }
}

void check_find_score(const Kernels& kernels, Results& results) {
    std::vector<float> x = numbers(64 * kTile);
    x[300] = kNaN;
    x[301] = kInfinity;
    x[302] = -kInfinity;
    const int count = static_cast<int>(x.size()) - 5;
    for (const std::uint64_t key : kKeys)
        for (const float limit : {2.0f, 6.0f, 9.0f}) {
            float score = 0.0f;
            const Perturbation how{.key = key, .factor = 0.7f, .first_token = 11};
            for (int i = 0; (i = kernels.find_score(how, x.data(), i, count, limit, &score)) < count; ++i)
                results.note(std::vector{static_cast<float>(i), score});
        }
}

void check_find(const Kernels& kernels, Results& results) {
    std::vector<float> x = awkward();
    const int count = static_cast<int>(x.size()) - 2 * kTile - 1;
    std::vector<std::int32_t> found;
    for (const float limit : {-kInfinity, -0.0f, 3.9f, 100.0f, kInfinity})
        for (int first = 0; first < count; first = found.back() + 1)
            found.push_back(kernels.find(x.data(), first, count, limit));
    results.note(found);
}

void check_peak(const Kernels& kernels, Results& results) {
    std::vector<std::int32_t> sink(1);
    results.note(std::vector{kernels.peak(3, sink.data())});
    results.note(sink);
}

void check_float_peak(const Kernels& kernels, Results& results) {
    std::vector<std::int32_t> sink(1);
    results.note(std::vector{kernels.float_peak(3, sink.data())});
    results.note(sink);
}

}  // namespace forerun
