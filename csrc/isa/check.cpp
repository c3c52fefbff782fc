// Does an instruction set compute what the portable kernels compute, on this very processor? Every
// kernel has a check here that runs it, and no other, on a small sample with odd sizes and awkward
// numbers, and notes all that it wrote.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <stdexcept>
#include <type_traits>

#include "model/cache.h"
#include "kernels/formats.h"
#include "isa/isa.h"

namespace forerun {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What a kernel wrote, byte by byte. A NaN is a NaN: its sign and payload may differ.
struct Results {
    std::vector<std::uint8_t> bytes;

    template <class T>
    void note(std::vector<T> values) {
        if constexpr (std::is_same_v<T, float>)
            for (float& value : values)
                if (std::isnan(value)) value = kNaN;
        const auto* first = reinterpret_cast<const std::uint8_t*>(values.data());
        bytes.insert(bytes.end(), first, first + values.size() * sizeof(T));
    }
};

// Numbers between -4 and 4.
std::vector<float> numbers(std::size_t count, std::uint32_t seed = 1) {
    std::vector<float> values(count);
    for (float& value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-29f;
    }
    return values;
}

// Ends of the ranges of exp, of fp16 and of int8 groups; ties of roundings.
constexpr float kAwkward[] = {-0.0f, kNaN,     kInfinity, -kInfinity, 1e-38f, 1e-41f, -87.4f,
                              88.5f, 65520.0f, -65519.0f, 6e-8f,      127.0f, 4.5f,   2049.0f};

// Groups of 32 numbers, each with an awkward one among them; then one of zeros.
std::vector<float> awkward() {
    std::vector<float> values = numbers((std::size(kAwkward) + 1) * kGroup);
    for (std::size_t i = 0; i < std::size(kAwkward); ++i)
        values[i * kGroup + (7 * i + 3) % kGroup] = kAwkward[i];
    std::fill(values.end() - kGroup, values.end(), 0.0f);
    return values;
}

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

constexpr int kNumRows = 13;  // 8 + 5
constexpr int kFewRows[] = {1, 2, 3, 4, 6, 7};  // and all others that a kernel may take at once

// A layer for flattened rows of `num_in` inputs, some of which have more than one place.
Packed flat_layer(const WeightFormat& format, int num_out, int num_in, int limit, bool is_even) {
    const int bits = format.bits;
    std::vector<std::int8_t> codes(num_out * num_in);
    const std::vector<std::uint8_t> bytes = weights(codes.size());
    for (std::size_t i = 0; i < codes.size(); ++i) {
        const int most = (1 << (bits - 1)) - 1;
        codes[i] = static_cast<std::int8_t>(i % 5 ? bytes[i] % (2 * most + 1) - most : most);
    }
    std::vector<std::int32_t> pieces(num_in, 1);
    for (int j = 0; j < num_in; j += 7) pieces[j] = 1 + j % 4;
    std::vector<float> scales = numbers(num_out, 8), inverse = numbers(num_in, 9);
    for (float& factor : inverse) factor = static_cast<float>(limit) * (std::abs(factor) + 0.1f);
    return pack(format, num_out, num_in,
                FlatCodes{codes.data(), scales.data(), inverse.data(), pieces.data(), limit, is_even},
                nullptr, 1);
}

void check_flat_linear(const Kernels& kernels, const WeightFormat& format, Results& results) {
    constexpr int num_in = 32, num_tiles = 3, stride = num_tiles * kTile + 1;
    const Packed layer = flat_layer(format, num_tiles * kTile, num_in, 127, false);
    const Flattening& flat = *layer.flat;
    RowsSample sample(kNumRows, num_in, flat.num_wide);
    for (int row = 0; row < kNumRows; ++row)
        portable::kernels.flatten(sample.x.data() + row * num_in, flat, sample.rows, row, 0, num_in);
    std::vector<float> out = numbers(kNumRows * stride, 5);
    kernels.linear(layer.linear, 0, num_tiles, sample.rows, 0, kNumRows,
                   {out.data(), stride, false, 1.0f});
    for (const int few : kFewRows)
        kernels.linear(layer.linear, 0, num_tiles, sample.rows, 8 - few, few,
                       {out.data(), stride, true, 0.3f});
    results.note(out);
}

void check_linear(const Kernels& kernels, Results& results) {
    constexpr int num_rows = kNumRows, num_tiles = 2, stride = num_tiles * kTile + 1;
    const std::vector<float> bias = numbers(num_tiles * kTile, 3);
    const std::vector<std::uint8_t> tiles = weights(num_tiles * 256 * kTile * sizeof(float));
    for (const WeightFormat& format : weight_formats()) {
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
    for (const bool is_even : {false, true}) {
        const Packed layer = flat_layer(weight_format("q8_c"), 1, count, is_even ? 7 : 127, is_even);
        RowsSample sample(2, count, layer.flat->num_wide);
        kernels.flatten(x.data() + kGroup, *layer.flat, sample.rows, 1, kGroup, count - kGroup);
        kernels.flatten(x.data(), *layer.flat, sample.rows, 0, 0, kGroup);
        results.note(sample.q);
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
          Activation::SwigluOai})
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

// Two blocks of one head, the second one first.
constexpr int kCacheRows = 2 * kChunk, kHeadDim = 96;
constexpr KvForms kForms[] = {{KvForm::F32, KvForm::F32},
                              {KvForm::F16, KvForm::F16},
                              {KvForm::Int8, KvForm::Int8},
                              {KvForm::Int4, KvForm::Int4},
                              {KvForm::Int8, KvForm::Int4}};

struct CacheSample {
    Cache cache;
    KvHead head;

    explicit CacheSample(KvForms forms) : cache({{1, kHeadDim}}, 1, kCacheRows, forms, 2) {
        cache.place(0, 0, 1);
        cache.place(0, 1, 0);
        head = cache.head(0, 0, 0);
    }
    void note(Results& results) const {
        const auto* first = cache.memory().as<std::uint8_t>();
        results.note(std::vector(first, first + cache.nbytes()));
    }
};

void check_quantize_query(const Kernels& kernels, Results& results) {
    const std::vector<float> x = awkward();
    std::vector<std::int8_t> codes(kHeadDim);
    std::vector<std::int32_t> sums(key_groups(kHeadDim));
    for (std::size_t i = 0; i + kHeadDim <= x.size(); i += kHeadDim / 2) {
        float scale = 0.0f;
        kernels.quantize_query(x.data() + i, kHeadDim, codes.data(), &scale, sums.data());
        results.note(codes);
        results.note(std::vector{scale});
        results.note(sums);
    }
}

template <auto Write>
void check_write(const Kernels& kernels, Results& results) {
    const std::vector<float> x = awkward();
    for (const KvForms forms : kForms) {
        CacheSample cache(forms);
        for (int i = 0; (i + 1) * kHeadDim <= static_cast<int>(x.size()); ++i)
            (kernels.*Write)(cache.head, 11 * i, x.data() + i * kHeadDim);
        cache.note(results);
    }
}

// Three queries of a tree at the end of the first chunk, one of which sees a window only, or the
// same three as a chain.
void attend(const Kernels& kernels, const KvHead& head, int group, bool is_tree, Results& results) {
    constexpr int num_rows = 3;
    static constexpr std::int32_t paths[] = {62, 62, 64, 62, 64, 66};
    const Query queries[] = {{0, 62, 0, 62, is_tree ? paths : nullptr},
                             {1, 63, 20, 62, is_tree ? paths + 1 : nullptr},
                             {2, 64, 0, 62, is_tree ? paths + 3 : nullptr}};
    const std::size_t stride = static_cast<std::size_t>(group) * kHeadDim;
    const std::vector<float> q = numbers(num_rows * group * kHeadDim, 5);
    std::vector<float> scratch(kMaxPairs * 2 * kCacheRows), out(num_rows * stride);
    const int num_heads = num_rows * group;
    std::vector<std::int8_t> codes(q.size());
    constexpr int groups = key_groups(kHeadDim);
    std::vector<float> scales(num_heads);
    std::vector<std::int32_t> sums(num_heads * groups);
    for (int i = 0; i < num_heads; ++i)
        portable::kernels.quantize_query(q.data() + i * kHeadDim, kHeadDim,
                                         codes.data() + i * kHeadDim, &scales[i],
                                         sums.data() + i * groups);
    const CodedQueries coded{codes.data(), scales.data(), sums.data()};
    for (int chunk = 0; chunk < 2; ++chunk) {
        Attended states[kMaxPairs];
        for (std::size_t pair = 0; pair < num_rows * static_cast<std::size_t>(group); ++pair)
            states[pair] = {0.0f, 0.0f, out.data() + pair * kHeadDim};
        kernels.attend({head, queries, num_rows, group, q.data(), stride, coded, group, 0, 1, 67,
                        is_tree ? 0.0f : 5.0f, scratch.data()},
                       chunk, states);
        for (int pair = 0; pair < num_rows * group; ++pair)
            results.note(std::vector{states[pair].largest, states[pair].total});
        results.note(out);
    }
}

void check_attend(const Kernels& kernels, Results& results) {
    for (const KvForms forms : kForms) {
        CacheSample cache(forms);
        for (int row = 0; row < 67; ++row) {  // those that are seen
            const std::vector<float> kv = numbers(2 * kHeadDim, static_cast<std::uint32_t>(row));
            portable::kernels.write_key(cache.head, row, kv.data());
            portable::kernels.write_value(cache.head, row, kv.data() + kHeadDim);
        }
        // 3 pairs, 4 + 2, 4 + 4 + 1; how pairs are cut does not depend on the form.
        for (int group = forms.keys == KvForm::F16 ? 1 : 3; group <= 3; ++group)
            attend(kernels, cache.head, group, group != 2, results);
    }
}

void check_merge(const Kernels& kernels, Results& results) {
    for (const float before : {-kInfinity, -3.0f, 0.25f})
        for (const float after : {-kInfinity, -1.5f, 99.0f}) {
            std::vector<float> old = numbers(kHeadDim, 2), young = numbers(kHeadDim, 3);
            Attended into{before, 1.5f, old.data()};
            kernels.merge({after, 2.5f, young.data()}, into, kHeadDim);
            results.note(std::vector{into.largest, into.total});
            results.note(old);
        }
}

void check_finish(const Kernels& kernels, Results& results) {
    std::vector<float> x = numbers(kHeadDim), out(x.size());
    kernels.finish({2.0f, 3.7f, x.data()}, kHeadDim, out.data());
    results.note(out);
}

void check_convolve(const Kernels& kernels, Results& results) {
    const std::vector<float> x = awkward();
    const int count = static_cast<int>(x.size()) - 3 * kTile;
    const std::vector<float> weights = numbers(4 * x.size(), 2), bias = numbers(x.size(), 3);
    const float* const rows[] = {x.data(), weights.data(), x.data() + 2 * kTile, x.data() + kTile};
    std::vector<float> out(x.size());
    for (const int num_taps : {3, 4}) {
        kernels.convolve({rows, weights.data(), num_taps == 3 ? bias.data() : nullptr, x.size(), num_taps,
                          num_taps == 4},
                         count, out.data());
        results.note(out);
    }
}

// Rows of a slot with keys of 4 numbers and values of 80.
struct StateSample {
    static constexpr int num_rows = kChunk + kTile, key_dim = 4, value_dim = 80;
    std::vector<float> keys = numbers(num_rows * key_dim, 2), changes = numbers(num_rows * value_dim, 3),
                       state = numbers(key_dim * value_dim, 4), decays = numbers(num_rows, 5);
    std::vector<std::int32_t> path;

    StateSample() {  // the last row's: others are between
        for (int i = 0; i < num_rows && path.size() < kChunk; ++i)
            if (i % 7 != 3) path.push_back(i);
    }
};

void check_dot_keys(const Kernels& kernels, Results& results) {
    const StateSample sample;
    constexpr int num_tiles = StateSample::num_rows / kTile;  // 4 + 1
    const std::vector<float> x = numbers(7 * StateSample::key_dim, 6);
    std::vector<const float*> vectors;
    for (int i = 0; i < 7; ++i) vectors.push_back(x.data() + i * StateSample::key_dim);
    std::vector<float> out(7 * StateSample::num_rows);
    for (const int count : {1, 7}) {
        kernels.dot_keys(sample.keys.data(), num_tiles, StateSample::key_dim, vectors.data(), count,
                         out.data(), StateSample::num_rows);
        results.note(out);
    }
}

void check_recur(const Kernels& kernels, Results& results) {
    constexpr int num_rows = 3, key_dim = StateSample::key_dim, value_dim = StateSample::value_dim;
    const std::vector<float> q = numbers(num_rows * key_dim, 6), k = numbers(num_rows * key_dim, 7),
                             v = numbers(num_rows * value_dim, 8);
    const std::vector<float> by_key = numbers(num_rows * StateSample::num_rows, 9),
                             by_query = numbers(num_rows * StateSample::num_rows, 10);
    for (const bool is_delta : {true, false})
        for (const int count : {1, num_rows}) {
            StateSample sample;
            std::vector<float> out(num_rows * value_dim), scratch(2 * num_rows * value_dim);
            RecurrentRow rows[num_rows];
            for (int i = 0; i < count; ++i)
                rows[i] = {.key = k.data() + i * key_dim,
                           .query = q.data() + i * key_dim,
                           .value = v.data() + i * value_dim,
                           .key_scores = by_key.data() + i * StateSample::num_rows,
                           .query_scores = by_query.data() + i * StateSample::num_rows,
                           .log_decay = -0.3f,
                           .rate = 0.7f,
                           .path = sample.path.data(),
                           .length = 19 * (i + 1) / count,
                           .out = out.data() + i * value_dim};
            kernels.recur({sample.state.data(), key_dim, value_dim, rows, count, is_delta, 0.4f,
                           sample.changes.data(), sample.decays.data(), scratch.data()});
            results.note(out);
            results.note(sample.changes);
            results.note(sample.decays);
        }
}

void check_change_state(const Kernels& kernels, Results& results) {
    StateSample sample;
    float* state = sample.state.data();
    kernels.change_state({state, state, StateSample::key_dim, StateSample::value_dim, sample.keys.data(),
                          sample.changes.data(), sample.decays.data(), sample.path.data()});
    results.note(sample.state);
}

void check_peak(const Kernels& kernels, Results& results) {
    std::vector<std::int32_t> sink(1);
    results.note(std::vector{kernels.peak(3, sink.data())});
    results.note(sink);
}

// --- kernels that are wrong on purpose, for the tests ---

// Changes the first byte of what a kernel wrote.
template <class T>
void spoil(T& argument) {
    if constexpr (std::is_same_v<T, Attended>) spoil(argument.out);
    if constexpr (std::is_same_v<T, const Rows>) spoil(argument.q);
    if constexpr (std::is_same_v<T, const Output>) spoil(argument.out);
    if constexpr (std::is_same_v<T, const KvHead>) spoil(argument.first_page);
    if constexpr (std::is_same_v<T, const Recurrence>) spoil(argument.changes);
    if constexpr (std::is_same_v<T, const StateChange>) spoil(argument.to);
    if constexpr (std::is_convertible_v<T, void*>)  // not const
        ++*static_cast<std::uint8_t*>(static_cast<void*>(argument));
}

template <auto Member, class Result, class... Args>
void break_kernel(Kernels& kernels, Result (*)(Args...)) {
    kernels.*Member = [](Args... args) -> Result {
        if constexpr (std::is_void_v<Result>) {
            (portable::kernels.*Member)(args...);
            (spoil(args), ...);
        } else {
            return (portable::kernels.*Member)(args...) + 1;
        }
    };
}

struct Check {
    const char* kernel;
    void (*run)(const Kernels&, Results&);
    void (*breaks)(Kernels&);
};

#define CHECK(kernel, check) \
    {#kernel, check,         \
     [](Kernels& kernels) { break_kernel<&Kernels::kernel>(kernels, kernels.kernel); }}
constexpr Check kChecks[] = {CHECK(linear, check_linear),
                             CHECK(quantize, check_quantize),
                             CHECK(flatten, check_flatten),
                             CHECK(norm, check_norm),
                             CHECK(activate, check_activate),
                             CHECK(gate, check_gate),
                             CHECK(rotate, check_rotate),
                             CHECK(scale, check_scale),
                             CHECK(cap, check_cap),
                             CHECK(exp_sum, check_exp_sum),
                             CHECK(find, check_find),
                             CHECK(noise, check_noise),
                             CHECK(find_score, check_find_score),
                             CHECK(quantize_query, check_quantize_query),
                             CHECK(write_key, check_write<&Kernels::write_key>),
                             CHECK(write_value, check_write<&Kernels::write_value>),
                             CHECK(attend, check_attend),
                             CHECK(merge, check_merge),
                             CHECK(finish, check_finish),
                             CHECK(convolve, check_convolve),
                             CHECK(dot_keys, check_dot_keys),
                             CHECK(recur, check_recur),
                             CHECK(change_state, check_change_state),
                             CHECK(peak, check_peak)};
#undef CHECK
static_assert(sizeof(Kernels) == (1 + std::size(kChecks)) * sizeof(void*),
              "every kernel of the table has its check");

}  // namespace

std::vector<std::string> checked_kernels() {
    std::vector<std::string> names;
    for (const Check& check : kChecks) names.emplace_back(check.kernel);
    return names;
}

std::vector<std::string> wrong_kernels(Kernels kernels, const std::string& broken) {
    bool is_known = broken.empty();
    for (const Check& check : kChecks) {
        if (broken != check.kernel) continue;
        check.breaks(kernels);
        is_known = true;
    }
    if (!is_known) throw std::invalid_argument("no kernel is called " + broken);
    std::vector<std::string> names;
    for (const Check& check : kChecks) {
        Results here, expected;
        check.run(kernels, here);
        check.run(portable::kernels, expected);
        if (here.bytes != expected.bytes) names.emplace_back(check.kernel);
    }
    return names;
}

}  // namespace forerun
