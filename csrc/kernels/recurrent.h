// Layers with a recurrent state (model/recurrence.h), each row exactly as if it were alone.
//
// Lanes are channels, values or, for scores, rows of keys in blocks of 16; so no sum goes across lanes,
// and each is one chain of fused multiply-adds in ascending order. A row adds only what is on its path.

#pragma once

#include "kernels/attention.h"
#include "kernels/rows.h"
#include "model/recurrence.h"

namespace forerun::FORERUN_ISA {

// Vectors of 16 values that are computed side by side, for one row and for a few.
inline constexpr int kFewSide = kRowTile >= 8 ? 8 : 2, kStateSide = kRowTile >= 8 ? 4 : 1;

// Calls run.template operator()<E>(first) for all values, E * 16 at a time, then 16.
template <int E, class Run>
inline void by_strips(int dim, const Run& run) {
    int first = 0;
    for (; dim - first >= E * kTile; first += E * kTile) run.template operator()<E>(first);
    for (; first < dim; first += kTile) run.template operator()<1>(first);
}

inline float exp(float x) {
    float lanes[kTile];
    store(lanes, exp(splat(x)));
    return lanes[0];
}

inline void convolve(const Convolution& c, int count, float* out) {
    for (int i = 0; i < count; i += kTile) {
        F sum = mul(load(c.weights + i), load(c.rows[0] + i));
        for (int tap = 1; tap < c.num_taps; ++tap)
            sum = fma(load(c.weights + tap * c.stride + i), load(c.rows[tap] + i), sum);
        if (c.bias) sum = add(sum, load(c.bias + i));
        store(out + i, c.is_activated ? activation(Activation::Silu, sum) : sum);
    }
}

// Scores of P vectors with B blocks of keys.
template <int P, int B>
void dot_blocks(const float* keys, int dim, const float* const* x, float* out, std::size_t stride) {
    F acc[P][B];
    for (auto& sums : acc)
        for (F& sum : sums) sum = splat(0.0f);
    for (int k = 0; k < dim; ++k) {
        F key[B];
        for (int b = 0; b < B; ++b) key[b] = load(keys + (b * dim + k) * kTile);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) acc[p][b] = fma(splat(x[p][k]), key[b], acc[p][b]);
    }
    for (int p = 0; p < P; ++p)
        for (int b = 0; b < B; ++b) store(out + p * stride + b * kTile, acc[p][b]);
}

inline void dot_keys(const float* keys, int num_tiles, int dim, const float* const* x, int num_x,
                     float* out, std::size_t stride) {
    by_strips<kStateSide>(num_tiles * kTile, [&]<int B>(int row) {
        by_parts<4>(num_x, [&]<int P>(int p) {
            dot_blocks<P, B>(keys + row * dim, dim, x + p, out + p * stride + row, stride);
        });
    });
}

// E * 16 values of S^T x for P vectors x.
template <int P, int E>
void read_lanes(const float* state, int key_dim, int value_dim, const float* const* x, float* out) {
    F acc[P][E];
    for (auto& sums : acc)
        for (F& sum : sums) sum = splat(0.0f);
    for (int k = 0; k < key_dim; ++k, state += value_dim) {
        F value[E];
        for (int e = 0; e < E; ++e) value[e] = load(state + e * kTile);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
            for (int e = 0; e < E; ++e) acc[p][e] = fma(splat(x[p][k]), value[e], acc[p][e]);
    }
    for (int p = 0; p < P; ++p)
        for (int e = 0; e < E; ++e) store(out + p * value_dim + e * kTile, acc[p][e]);
}

// S^T x (num_x, value_dim): what is read of a state by some vectors. A row's key and query read the state
// in one stream; more of them a strip of it at a time, which stays at hand.
inline void read_state(const float* state, int key_dim, int value_dim, const float* const* x,
                       int num_x, float* out) {
    if (num_x <= 2) {
        by_strips<kFewSide>(value_dim, [&]<int E>(int first) {
            if (num_x == 2)
                read_lanes<2, E>(state + first, key_dim, value_dim, x, out + first);
            else
                read_lanes<1, E>(state + first, key_dim, value_dim, x, out + first);
        });
        return;
    }
    by_strips<kStateSide>(value_dim, [&]<int E>(int first) {
        by_parts<4>(num_x, [&]<int P>(int p) {
            read_lanes<P, E>(state + first, key_dim, value_dim, x + p, out + p * value_dim + first);
        });
    });
}

// scores[path[i]] times e^(decay - decays[path[i]]), in whole vectors.
inline void weigh(const RecurrentRow& row, const float* scores, const float* decays, int length,
                  float decay, float* weights) {
    float exponents[kChunk];
    const int whole = (length + kTile - 1) / kTile * kTile;
    for (int i = 0; i < whole; ++i) {
        weights[i] = i < length ? scores[row.path[i]] : 0.0f;
        exponents[i] = i < length ? decay - decays[row.path[i]] : 0.0f;
    }
    for (int i = 0; i < whole; i += kTile)
        store(weights + i, mul(load(weights + i), exp(load(exponents + i))));
}

// What a row needs besides its lanes: how much of what its key and its query have read of the state, and
// of what earlier rows changed, it takes.
struct RowWeights {
    float key[kChunk], query[kChunk], state;
};

// E * 16 values of a row: what it changes, and its output. `key_read` and `query_read` are of the state.
template <int E>
void recur_lanes(const Recurrence& r, const RecurrentRow& row, const RowWeights& weights,
                 const float* key_read, const float* query_read, int first) {
    F change[E], out[E], value[E];
    const F state = splat(weights.state), rate = splat(row.rate);
    for (int e = 0; e < E; ++e) {
        const int at = first + e * kTile;
        value[e] = load(row.value + at);
        change[e] = r.is_delta ? sub(value[e], mul(state, load(key_read + at))) : value[e];
        out[e] = mul(state, load(query_read + at));
    }
    const int last = row.length - 1;
    for (int i = 0; i < last; ++i) {
        const float* earlier = r.changes + static_cast<std::size_t>(row.path[i]) * r.value_dim + first;
        const F by_key = splat(-weights.key[i]), by_query = splat(weights.query[i]);
#pragma GCC unroll 8
        for (int e = 0; e < E; ++e) {
            const F d = load(earlier + e * kTile);
            if (r.is_delta) change[e] = fma(by_key, d, change[e]);
            out[e] = fma(by_query, d, out[e]);
        }
    }
    float* own = r.changes + static_cast<std::size_t>(row.path[last]) * r.value_dim + first;
    for (int e = 0; e < E; ++e) {
        change[e] = mul(rate, change[e]);
        store(own + e * kTile, change[e]);
        out[e] = fma(splat(weights.query[last]), change[e], out[e]);
        if (!r.is_delta) out[e] = fma(splat(r.skip), value[e], out[e]);
        store(row.out + first + e * kTile, out[e]);
    }
}

// One row, whose ancestors are there.
inline void recur_row(const Recurrence& r, const RecurrentRow& row, const float* key_read,
                      const float* query_read) {
    const int last = row.length - 1;
    float decay = row.log_decay;
    if (last > 0) decay = r.decays[row.path[last - 1]] + decay;
    r.decays[row.path[last]] = decay;
    RowWeights weights;
    weights.state = exp(decay);
    weigh(row, row.query_scores, r.decays, row.length, decay, weights.query);
    if (r.is_delta) weigh(row, row.key_scores, r.decays, last, decay, weights.key);
    by_strips<kStateSide>(r.value_dim, [&]<int E>(int first) {
        recur_lanes<E>(r, row, weights, key_read, query_read, first);
    });
}

// Rows of a head: first all read the state, then one after the other adds up what its ancestors changed.
inline void recur(const Recurrence& r) {
    const float* vectors[2 * kStateRows];
    const int each = r.is_delta ? 2 : 1;
    for (int i = 0; i < r.num_rows; ++i) {
        vectors[i * each] = r.rows[i].query;
        if (r.is_delta) vectors[i * each + 1] = r.rows[i].key;
    }
    read_state(r.state, r.key_dim, r.value_dim, vectors, r.num_rows * each, r.scratch);
    for (int i = 0; i < r.num_rows; ++i) {
        const float* read = r.scratch + static_cast<std::size_t>(i) * each * r.value_dim;
        recur_row(r, r.rows[i], read + r.value_dim, read);
    }
}

// E * 16 values of K rows of a state, from row `key` on. Of each row of the path, `weights` is how much of
// its key is left.
template <int K, int E>
void change_lanes(const StateChange& c, const float (*weights)[kChunk], float kept, int key, int first) {
    F acc[K][E];
    for (int k = 0; k < K; ++k)
        for (int e = 0; e < E; ++e) {
            const std::size_t at = static_cast<std::size_t>(key + k) * c.value_dim + first + e * kTile;
            acc[k][e] = mul(splat(kept), load(c.state + at));
        }
    for (int i = 0; i < kChunk; ++i) {
        const float* change = c.changes + static_cast<std::size_t>(c.path[i]) * c.value_dim + first;
        F value[E];
        for (int e = 0; e < E; ++e) value[e] = load(change + e * kTile);
#pragma GCC unroll 4
        for (int k = 0; k < K; ++k)
#pragma GCC unroll 4
            for (int e = 0; e < E; ++e) acc[k][e] = fma(splat(weights[k][i]), value[e], acc[k][e]);
    }
    for (int k = 0; k < K; ++k)
        for (int e = 0; e < E; ++e)
            store(c.to + static_cast<std::size_t>(key + k) * c.value_dim + first + e * kTile, acc[k][e]);
}

inline void change_state(const StateChange& c) {
    constexpr int K = 4;
    const float last = c.decays[c.path[kChunk - 1]];
    float left[kChunk], weights[K][kChunk];
    for (int i = 0; i < kChunk; ++i) left[i] = last - c.decays[c.path[i]];
    for (int i = 0; i < kChunk; i += kTile) store(left + i, exp(load(left + i)));
    const float kept = exp(last);
    for (int key = 0; key < c.key_dim; key += K) {
        for (int i = 0; i < kChunk; ++i) {
            const int row = c.path[i];
            const float* keys = c.keys + (row / kTile * c.key_dim + key) * kTile + row % kTile;
            for (int k = 0; k < K; ++k) weights[k][i] = left[i] * keys[k * kTile];
        }
        by_strips<kStateSide>(c.value_dim, [&]<int E>(int first) {
            change_lanes<K, E>(c, weights, kept, key, first);
        });
    }
}

}  // namespace forerun::FORERUN_ISA
