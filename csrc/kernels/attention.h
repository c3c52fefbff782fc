// Attention over the cache, chunk by chunk, each row exactly as if it were alone.
//
// Keys lie in blocks of 16, so the lanes of a vector are 16 keys and a score needs no sum across
// lanes; values lie row after row, lanes across E (kv.h). A chunk is 64 absolute positions: its scores
// are put in order of position, its exponentials summed in that order, its values added in that
// order. What a row cannot see is never added. So neither the cache row of a tree row, nor its
// siblings, nor how many rows attend, nor how chunks are spread over threads, changes a bit.

#pragma once

#include <type_traits>

#include "model/types.h"
#include "kernels/kv.h"
#include "kernels/rows.h"

namespace forerun::FORERUN_ISA {

inline constexpr float kNothing = -__builtin_huge_valf();

// Blocks of keys, or of 16 values, that are computed side by side: enough independent sums to keep
// the multipliers busy, few enough to stay in registers.
inline constexpr int kSide = kRowTile >= 8 ? 4 : 1;

// Calls run.template operator()<P>(first) for pairs first..first + P, all of them, 4 at a time.
template <class Run>
inline void by_fours(int num_pairs, const Run& run) {
    int p = 0;
    for (; num_pairs - p >= 4; p += 4) run.template operator()<4>(p);
    if (num_pairs - p == 3) run.template operator()<3>(p);
    if (num_pairs - p == 2) run.template operator()<2>(p);
    if (num_pairs - p == 1) run.template operator()<1>(p);
}

// Scores of the slot's rows first..stop (whole tiles) for every pair, at out + pair * stride.
template <class T>
void score(const KvHead& head, int first, int stop, const typename KvTypes<T>::Query* q,
           int num_pairs, float* out, std::size_t stride) {
    constexpr int kSide = KvTypes<T>::kSide;
    const auto blocks = [&]<int B>(int row) {
        by_fours(num_pairs, [&]<int P>(int p) {
            score_blocks<T, P, B>(head, row / kChunk, row % kChunk, q + p,
                                  out + p * stride + (row - first), stride);
        });
    };
    for (int row = first; row < stop;) {
        const bool is_side = row % (kSide * kTile) == 0 && stop - row >= kSide * kTile;
        if (is_side)
            blocks.template operator()<kSide>(row);
        else
            blocks.template operator()<1>(row);
        row += (is_side ? kSide : 1) * kTile;
    }
}

// Adds weights times values to E * 16 outputs of every pair.
template <class T, int P, int E>
void add_lanes(const T* const* rows, int head_dim, int count, const float* weights,
               Attended* states, int first) {
    F acc[P][E];
    for (int p = 0; p < P; ++p)
        for (int e = 0; e < E; ++e) acc[p][e] = load(states[p].out + first + e * kTile);
    for (int j = 0; j < count; ++j) {
        const ValueRow<T> row(rows[j], head_dim);
        F value[E];
        for (int e = 0; e < E; ++e) value[e] = row.lanes(first + e * kTile);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int e = 0; e < E; ++e)
                acc[p][e] = fma(splat(weights[p * kChunk + j]), value[e], acc[p][e]);
    }
    for (int p = 0; p < P; ++p)
        for (int e = 0; e < E; ++e) store(states[p].out + first + e * kTile, acc[p][e]);
}

template <class T>
void add_values(const T* const* rows, int head_dim, int count, const float* weights,
                Attended* states, int num_pairs) {
    by_fours(num_pairs, [&]<int P>(int p) {
        const float* from = weights + p * kChunk;
        int e = 0;
        for (; head_dim - e >= kSide * kTile; e += kSide * kTile)
            add_lanes<T, P, kSide>(rows, head_dim, count, from, states + p, e);
        for (; e < head_dim; e += kTile)
            add_lanes<T, P, 1>(rows, head_dim, count, from, states + p, e);
    });
}

// int4 values are unpacked once for all pairs, as many rows at a time as stay in the processor's cache.
inline constexpr int kUnpacked = kChunk * 128;
static_assert(kUnpacked >= kWidestInt4);

inline void add_values(const std::uint8_t* const* rows, int head_dim, int count,
                       const float* weights, Attended* states, int num_pairs) {
    float values[kUnpacked];
    const float* unpacked[kChunk];
    const int most = kUnpacked / head_dim;
    for (int first = 0; first < count; first += most) {
        const int num = count - first < most ? count - first : most;
        for (int j = 0; j < num; ++j) {
            const ValueRow<std::uint8_t> row(rows[first + j], head_dim);
            float* out = values + j * head_dim;
            for (int e = 0; e < head_dim; e += kTile) store(out + e, row.lanes(e));
            unpacked[j] = out;
        }
        add_values(unpacked, head_dim, num, weights + first, states, num_pairs);
    }
}

// Turns a chunk's scores (kNothing where unseen) into exponentials, and notes the largest score and
// their sum.
inline void exp_scores(float* s, Attended& state) {
    F top = load(s);
    for (int i = kTile; i < kChunk; i += kTile) top = max(top, load(s + i));
    state.largest = largest(top);
    F total = splat(0.0f);
    for (int i = 0; i < kChunk; i += kTile) {
        const F e = exp(sub(load(s + i), splat(state.largest)));
        store(s + i, e);
        total = add(total, e);
    }
    state.total = sum(total);
}

inline bool is_empty(const Attended& state) { return state.largest == kNothing; }

// Adds `from`, later keys, to `into`; a state without keys changes nothing.
inline void merge(const Attended& from, Attended& into, int head_dim) {
    if (is_empty(from)) return;
    if (is_empty(into)) {
        into.largest = from.largest;
        into.total = from.total;
        for (int e = 0; e < head_dim; e += kTile) store(into.out + e, load(from.out + e));
        return;
    }
    const float top = into.largest > from.largest ? into.largest : from.largest;
    const F old = exp(splat(into.largest - top)), young = exp(splat(from.largest - top));
    float old_lanes[kTile], young_lanes[kTile];
    store(old_lanes, old);
    store(young_lanes, young);
    into.largest = top;
    into.total = into.total * old_lanes[0] + from.total * young_lanes[0];
    for (int e = 0; e < head_dim; e += kTile)
        store(into.out + e, fma(load(from.out + e), young, mul(load(into.out + e), old)));
}

inline void finish(const Attended& state, int head_dim, float* out) {
    const F factor = splat(1.0f / state.total);
    for (int e = 0; e < head_dim; e += kTile) store(out + e, mul(load(state.out + e), factor));
}

struct Span {
    int first, stop;
};

// Positions of this chunk that a query sees.
inline Span seen(const Query& query, int chunk) {
    const int first = chunk * kChunk > query.first ? chunk * kChunk : query.first;
    const int end = (chunk + 1) * kChunk;
    return {first, query.position + 1 < end ? query.position + 1 : end};
}

// Fills `weights` (pairs, 64) with scores in order of position.
template <class T>
void chunk_scores(const Attention& a, int chunk, const typename KvTypes<T>::Query* q,
                  float* weights, float* above) {
    const int num_pairs = a.num_queries * a.group, start = chunk * kChunk, base = a.queries[0].base;
    const bool has_paths = a.queries[0].path != nullptr;
    int plain_stop = 0;  // positions from here on are reached by paths, or not at all
    for (int i = 0; i < a.num_queries; ++i)
        if (a.queries[i].position + 1 > plain_stop) plain_stop = a.queries[i].position + 1;
    const bool needs_paths = has_paths && plain_stop > base && base < start + kChunk;
    if (has_paths && plain_stop > base) plain_stop = base;
    if (plain_stop > start + kChunk) plain_stop = start + kChunk;
    if (plain_stop > start) {
        const int whole = (plain_stop + kTile - 1) / kTile * kTile;
        score<T>(a.head, start, whole, q, num_pairs, weights, kChunk);
    }
    if (!needs_paths) return;

    const int first_row = base / kTile * kTile,
              stop_row = (a.row_stop + kTile - 1) / kTile * kTile;
    const std::size_t stride = static_cast<std::size_t>(stop_row - first_row);
    score<T>(a.head, first_row, stop_row, q, num_pairs, above, stride);
    for (int i = 0; i < a.num_queries; ++i) {
        const Span span = seen(a.queries[i], chunk);
        for (int h = i * a.group; h < (i + 1) * a.group; ++h)
            for (int position = span.first > base ? span.first : base; position < span.stop;
                 ++position)
                weights[h * kChunk + position - start] =
                    above[h * stride + a.queries[i].path[position - base] - first_row];
    }
}

// Where the values of a chunk's positions lie, as one query sees them, and the scales of int8 ones.
template <class T>
struct ValueRows {
    using Value = typename KvTypes<T>::Value;
    const Value* rows[kChunk];
    float scales[kChunk];

    void find(const KvHead& head, const Query& query, int chunk) {
        const std::size_t stride = std::is_same_v<T, Int4>
                                       ? int4_row_nbytes(head.head_dim)
                                       : static_cast<std::size_t>(head.head_dim);
        const int start = chunk * kChunk;
        const Value* page = head.values<Value>(chunk);
        for (int j = 0; j < kChunk; ++j) rows[j] = page + j * stride;
        if constexpr (std::is_same_v<T, Int8>)
            for (int j = 0; j < kChunk; j += kTile)
                store(scales + j, load(head.value_factors<float>(chunk) + j));
        if (!query.path) return;
        const Span span = seen(query, chunk);
        for (int p = span.first > query.base ? span.first : query.base; p < span.stop; ++p) {
            const int row = query.path[p - query.base], own = row / kChunk;
            rows[p - start] = head.values<Value>(own) + row % kChunk * stride;
            if constexpr (std::is_same_v<T, Int8>)
                scales[p - start] = head.value_factors<float>(own)[row % kChunk];
        }
    }
};

// The query heads that attend, as the form's keys need them.
inline void queries_of(const Attention& a, const float** q) {
    for (int i = 0; i < a.num_queries; ++i)
        for (int h = 0; h < a.group; ++h)
            q[i * a.group + h] = a.q + static_cast<std::size_t>(a.queries[i].row) * a.q_stride +
                                 h * a.head.head_dim;
}
inline void queries_of(const Attention& a, CodedQuery* q) {
    const int groups = key_groups(a.head.head_dim);
    for (int i = 0; i < a.num_queries; ++i)
        for (int h = 0; h < a.group; ++h) {
            const std::size_t at =
                static_cast<std::size_t>(a.queries[i].row) * a.num_heads + a.head_index + h;
            q[i * a.group + h] = {a.coded.codes + at * a.head.head_dim,
                                  a.coded.scales[at], a.coded.sums + at * groups};
        }
}

// Positions of the chunk that every query sees, at their own rows.
inline Span seen_by_all(const Attention& a, int chunk) {
    Span shared{chunk * kChunk, (chunk + 1) * kChunk};
    for (int i = 0; i < a.num_queries; ++i) {
        const Query& query = a.queries[i];
        const Span span = seen(query, chunk);
        const int stop = query.path && query.base < span.stop ? query.base : span.stop;
        if (span.first > shared.first) shared.first = span.first;
        if (stop < shared.stop) shared.stop = stop;
    }
    if (shared.stop < shared.first) shared.stop = shared.first;
    return shared;
}

// Exponentials of one query's pairs, and their states without values yet.
inline void exp_scores_of(const Attention& a, int i, int chunk, float* weights, Attended* states) {
    const Span span = seen(a.queries[i], chunk);
    const int start = chunk * kChunk;
    for (int pair = i * a.group; pair < (i + 1) * a.group; ++pair) {
        Attended& state = states[pair];
        for (int e = 0; e < a.head.head_dim; e += kTile) store(state.out + e, splat(0.0f));
        state.largest = kNothing;
        state.total = 0.0f;
        if (span.first >= span.stop) continue;
        float* s = weights + pair * kChunk;
        if (a.cap > 0.0f) cap(s, kChunk, a.cap);
        for (int j = 0; j < span.first - start; ++j) s[j] = kNothing;
        for (int j = span.stop - start; j < kChunk; ++j) s[j] = kNothing;
        exp_scores(s, state);
    }
}

inline void prefetch(const std::uint8_t* first, std::size_t nbytes) {
    for (std::size_t i = 0; i < nbytes; i += 64) __builtin_prefetch(first + i);
}

// K and V are the forms of keys and of values.
template <class K, class V>
void attend_chunk(const Attention& a, int chunk, Attended* states) {
    using Value = typename KvTypes<V>::Value;
    const int head_dim = a.head.head_dim, start = chunk * kChunk;
    float* weights = a.scratch;
    typename KvTypes<K>::Query q[kMaxPairs];
    queries_of(a, q);
    // The processor sees no order in the blocks of a table.
    const KvPage& page = *a.head.page;
    prefetch(a.head.values<std::uint8_t>(chunk), page.nbytes - page.values);
    chunk_scores<K>(a, chunk, q, weights, weights + kMaxPairs * kChunk);
    if (chunk < a.last_chunk) prefetch(a.head.keys<std::uint8_t>(chunk + 1), page.values);
    for (int i = 0; i < a.num_queries; ++i) exp_scores_of(a, i, chunk, weights, states);

    const auto add = [&](Span span, const Value* const* rows, int pair, int num_pairs) {
        if (span.first >= span.stop) return;
        const int j = span.first - start;
        add_values(rows + j, head_dim, span.stop - span.first, weights + pair * kChunk + j,
                   states + pair, num_pairs);
    };
    // For every query in order of position: what it alone sees, what all see, what it alone sees.
    ValueRows<V> values[kMaxPairs];
    const Span shared = seen_by_all(a, chunk);
    for (int i = 0; i < a.num_queries; ++i) {
        const Span span = seen(a.queries[i], chunk);
        values[i].find(a.head, a.queries[i], chunk);
        if constexpr (std::is_same_v<V, Int8>)
            for (int pair = i * a.group; pair < (i + 1) * a.group; ++pair)
                for (int j = pair * kChunk, k = 0; k < kChunk; k += kTile)
                    store(weights + j + k, mul(load(weights + j + k), load(values[i].scales + k)));
        add({span.first, span.stop < shared.first ? span.stop : shared.first}, values[i].rows,
            i * a.group, a.group);
    }
    add(shared, values[0].rows, 0, a.num_queries * a.group);
    for (int i = 0; i < a.num_queries; ++i) {
        const Span span = seen(a.queries[i], chunk);
        add({span.first > shared.stop ? span.first : shared.stop, span.stop}, values[i].rows,
            i * a.group, a.group);
    }
}

inline void attend(const Attention& a, int chunk, Attended* states) {
    const KvForms forms = a.head.page->forms;
    if (forms.keys == KvForm::Int8 && forms.values == KvForm::Int4)
        return attend_chunk<Int8, Int4>(a, chunk, states);
    by_form(forms.keys, [&]<class T>() { attend_chunk<T, T>(a, chunk, states); });
}

}  // namespace forerun::FORERUN_ISA
