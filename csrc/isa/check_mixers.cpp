// Checks of attention over the cache, of convolutions and of recurrent layers.

#include <initializer_list>
#include <utility>

#include "model/cache.h"
#include "isa/check.h"

namespace forerun {
namespace {

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

    explicit CacheSample(KvForms forms, int value_dim = kHeadDim)
        : cache({{1, kHeadDim, value_dim}}, 1, kCacheRows, forms, 2) {
        cache.place(0, 0, 1);
        cache.place(0, 1, 0);
        head = cache.head(0, 0, 0);
    }
    void note(Results& results) const {
        const auto* first = cache.memory().as<std::uint8_t>();
        results.note(std::vector(first, first + cache.nbytes()));
    }
};

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
    for (const auto& [first, stop] : std::initializer_list<std::pair<int, int>>{{0, 2}, {0, 1}, {1, 2}}) {
        Attended states[kMaxPairs];
        for (std::size_t pair = 0; pair < num_rows * static_cast<std::size_t>(group); ++pair)
            states[pair] = {0.0f, 0.0f, out.data() + pair * kHeadDim};
        kernels.attend({head, queries, num_rows, group, q.data(), stride, coded, group, 0, 1, 67,
                        is_tree ? 0.0f : 5.0f, scratch.data()},
                       first, stop, states);
        for (int pair = 0; pair < num_rows * group; ++pair)
            results.note(std::vector{states[pair].largest, states[pair].total});
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

// All forms, and values that are the first half of their keys.
std::vector<std::pair<KvForms, int>> attended_samples() {
    std::vector<std::pair<KvForms, int>> samples{{{KvForm::F16, KvForm::F16}, kHeadDim / 2}};
    for (const KvForms forms : kForms) samples.emplace_back(forms, kHeadDim);
    return samples;
}

}  // namespace

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

void check_write_key(const Kernels& kernels, Results& results) {
    check_write<&Kernels::write_key>(kernels, results);
}

void check_write_value(const Kernels& kernels, Results& results) {
    check_write<&Kernels::write_value>(kernels, results);
}

void check_attend(const Kernels& kernels, Results& results) {
    for (const auto& [forms, value_dim] : attended_samples()) {
        CacheSample cache(forms, value_dim);
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

}  // namespace forerun
