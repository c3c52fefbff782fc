// Attention over the cache, chunk by chunk, each row exactly as if it were alone.
//
// Keys lie in blocks of 16, so the lanes of a vector are 16 keys and a score needs no sum across
// lanes; values lie row after row, lanes across E (kv.h). A chunk is 64 absolute positions: its scores
// are put in order of position, its exponentials summed in that order, its values added in that
// order, or as whole numbers in any, to those of the chunks before it in its run (types.h). What a row
// cannot see is never added. So neither the cache row of a tree row, nor its siblings, nor how many rows
// attend, nor how runs are spread over threads, changes a bit.

#pragma once

#include <algorithm>
#include <type_traits>
#include <utility>

#include "model/types.h"
#include "kernels/kv.h"
#include "kernels/rows.h"
#include "kernels/softmax.h"
#include "kernels/values.h"

namespace forerun::FORERUN_ISA {

// Scores of P pairs with keys that lie row after row: lanes across E, added up at the end.
template <class T, int P>
void score_rows(const KvHead& head, int first, int stop, const float* const* q, float* out, std::size_t stride) {
    const int dim = head.head_dim;
    for (int row = first; row < stop; ++row) {
        const T* key = head.keys<T>(row / kChunk) + row % kChunk * dim;
        F acc[P];
        for (F& sums : acc) sums = splat(0.0f);
        for (int e = 0; e < dim; e += kTile) {
            const F numbers = load(key + e);
#pragma GCC unroll 6
            for (int p = 0; p < P; ++p) acc[p] = fma(load(q[p] + e), numbers, acc[p]);
        }
        for (int p = 0; p < P; ++p) out[p * stride + (row - first)] = sum(acc[p]);
    }
}

// Scores of the slot's rows first..stop (whole tiles) for every pair, at out + pair * stride.
template <class T>
void score(const KvHead& head, int first, int stop, const typename KvTypes<T>::Query* q,
           int num_pairs, float* out, std::size_t stride) {
    if constexpr (std::is_same_v<typename KvTypes<T>::Query, const float*>)
        if (head.page->shares_kv)
            return by_parts<kPairsAside>(num_pairs, [&]<int P>(int p) {
                score_rows<T, P>(head, first, stop, q + p, out + p * stride, stride);
            });
    constexpr int kSide = KvTypes<T>::kSide;
    const auto blocks = [&]<int B>(int row) {
        by_parts<kPairsAside>(num_pairs, [&]<int P>(int p) {
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

// Where the values of a chunk's positions lie, for all queries or as one sees them on its path.
template <class T>
struct ValueRows {
    using Value = typename KvTypes<T>::Value;
    const Value* rows[kChunk];

    static std::size_t stride_of(const KvHead& head) {
        const auto dim = static_cast<std::size_t>(head.value_width());
        return std::is_same_v<T, Int4> ? int4_row_nbytes(head.value_dim) : dim;
    }
    void find(const KvHead& head, int chunk) {
        const std::size_t stride = stride_of(head);
        const Value* page = head.values<Value>(chunk);
        for (int j = 0; j < kChunk; ++j) rows[j] = page + j * stride;
    }
    void find(const KvHead& head, int chunk, const Query& query) {
        find(head, chunk);
        if (!query.path) return;
        const std::size_t stride = stride_of(head);
        const int start = chunk * kChunk;
        const Span span = seen(query, chunk);
        for (int p = span.first > query.base ? span.first : query.base; p < span.stop; ++p) {
            const int row = query.path[p - query.base];
            rows[p - start] = head.values<Value>(row / kChunk) + row % kChunk * stride;
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

// Exponentials of one query's pairs: 0 where it sees nothing.
inline void exp_scores_of(const Attention& a, int i, int chunk, float* weights, Attended* states) {
    const Span span = seen(a.queries[i], chunk);
    if (span.first >= span.stop) {
        std::fill_n(weights + i * a.group * kChunk, a.group * kChunk, 0.0f);
        return;
    }
    const int start = chunk * kChunk;
    for (int pair = i * a.group; pair < (i + 1) * a.group; ++pair) {
        float* s = weights + pair * kChunk;
        if (a.cap > 0.0f) cap(s, kChunk, a.cap);
        for (int j = 0; j < span.first - start; ++j) s[j] = kNothing;
        for (int j = span.stop - start; j < kChunk; ++j) s[j] = kNothing;
        exp_scores(s, states[pair], a.head.value_dim);
    }
}

// Bytes from values of a chunk to keys of the next one.
inline std::ptrdiff_t next_chunk(const Attention& a, int chunk) {
    if (chunk >= a.last_chunk) return 0;
    return a.head.keys<std::uint8_t>(chunk + 1) - a.head.values<std::uint8_t>(chunk);
}

// Adds weights times values, for every query in order of position: what it alone sees, what all see, what it alone
// sees.
template <class V>
void add_chunk(const Attention& a, int chunk, float* weights, float*, Attended* states) {
    const KvHead& head = a.head;
    const int start = chunk * kChunk;
    const std::ptrdiff_t ahead = next_chunk(a, chunk);
    const auto add = [&](Span span, const ValueRows<V>& values, int query, int num_queries) {
        if (span.first >= span.stop) return;
        const int j = span.first - start, pair = query * a.group, count = num_queries * a.group;
        add_values(values.rows + j, head.value_dim, span.stop - span.first, weights + pair * kChunk + j,
                   states + pair, count, ahead);
    };
    ValueRows<V> common, own;
    common.find(head, chunk);
    const Span shared = seen_by_all(a, chunk);
    const auto add_own = [&](auto part) {
        for (int i = 0; i < a.num_queries; ++i) {
            const Span span = part(seen(a.queries[i], chunk));
            if (span.first >= span.stop) continue;
            own.find(head, chunk, a.queries[i]);
            add(span, own, i, 1);
        }
    };
    add_own([&](Span span) { return Span{span.first, std::min(span.stop, shared.first)}; });
    add(shared, common, 0, a.num_queries);
    add_own([&](Span span) { return Span{std::max(span.first, shared.stop), span.stop}; });
}

// int8 values: a chunk's weights become whole numbers as well. Those of rows on a path stand at these rows' own places.
template <class V>
    requires std::is_same_v<V, Int8>
void add_chunk(const Attention& a, int chunk, float* weights, float* above, Attended* states) {
    const KvHead& head = a.head;
    const int start = chunk * kChunk, num_pairs = a.num_queries * a.group, base = a.queries[0].base;
    const bool has_paths = a.queries[0].path && start + kChunk > base;
    const int first_row = base / 4 * 4, num_above = has_paths ? (a.row_stop + 3 - first_row) / 4 : 0;

    std::uint8_t codes[kMaxPairs * kChunk];
    const CodedWeights coded[] = {{codes, start, kChunk / 4},
                                  {reinterpret_cast<std::uint8_t*>(above), first_row, num_above}};
    std::fill_n(coded[1].codes, num_pairs * 4 * num_above, kNoWeight);
    float factors[kMaxPairs];
    for (int i = 0; i < a.num_queries; ++i) {
        const Query& query = a.queries[i];
        const Span span = seen(query, chunk);
        const auto on_path = [&](const auto& visit) {
            if (has_paths)
                for (int p = std::max(span.first, base); p < span.stop; ++p) visit(p - start, query.path[p - base]);
        };
        float scales[kChunk] = {};  // of what the query sees
        const float* own = head.value_factors<float>(chunk);
        for (int p = span.first; p < span.stop; ++p) scales[p - start] = own[p - start];
        on_path([&](int j, int row) { scales[j] = head.value_factors<float>(row / kChunk)[row % kChunk]; });
        for (int pair = i * a.group; pair < (i + 1) * a.group; ++pair) {
            std::uint8_t* dense = coded[0].of(pair);
            factors[pair] = code_weights(weights + pair * kChunk, scales, dense);
            on_path([&](int j, int row) {
                coded[1].of(pair)[row - first_row] = std::exchange(dense[j], kNoWeight);
            });
        }
    }
    const std::ptrdiff_t ahead = next_chunk(a, chunk);
    by_tiles(num_pairs, head.value_dim, [&]<int P, int E>(int pair, int e) {
        add_dots<P, E>(head, coded, pair, e, factors, states, ahead);
    });
}

// K and V are the forms of keys and of values.
template <class K, class V>
void attend_chunk(const Attention& a, const typename KvTypes<K>::Query* q, int chunk, Attended* states) {
    float *weights = a.scratch, *above = weights + kMaxPairs * kChunk;
    chunk_scores<K>(a, chunk, q, weights, above);
    for (int i = 0; i < a.num_queries; ++i) exp_scores_of(a, i, chunk, weights, states);
    add_chunk<V>(a, chunk, weights, above, states);
}

template <class K, class V>
void attend_chunks(const Attention& a, int first, int stop, Attended* states) {
    typename KvTypes<K>::Query q[kMaxPairs];
    queries_of(a, q);
    for (int chunk = first; chunk < stop; ++chunk) attend_chunk<K, V>(a, q, chunk, states);
}

inline void attend(const Attention& a, int first, int stop, Attended* states) {
    for (int pair = 0; pair < a.num_queries * a.group; ++pair) {
        states[pair].largest = kNothing;
        states[pair].total = 0.0f;
        for (int e = 0; e < a.head.value_dim; e += kTile) store(states[pair].out + e, splat(0.0f));
    }
    const KvForms forms = a.head.page->forms;
    if (forms.keys == KvForm::Int8 && forms.values == KvForm::Int4)
        return attend_chunks<Int8, Int4>(a, first, stop, states);
    by_form(forms.keys, [&]<class T>() { attend_chunks<T, T>(a, first, stop, states); });
}

}  // namespace forerun::FORERUN_ISA
