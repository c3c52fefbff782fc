// Values of the cache, added with the weights of attention: lanes across E, many pairs (query, head) at a time.

#pragma once

#include <utility>

#include "model/types.h"
#include "kernels/kv.h"
#include "kernels/rows.h"

namespace forerun::FORERUN_ISA {

// Blocks of 16 values, and pairs, that are computed side by side: enough independent sums to keep the
// multipliers busy, few enough to stay in registers. A number is loaded once for all pairs of a tile.
inline constexpr int kSide = kRowTile >= 8 ? 4 : 1, kPairsAside = 6;

// Calls run.template operator()<P>(first) for first..first + P of `count`, all of them, in even parts of so many
// at most.
template <int Most, class Run>
inline void by_parts(int count, const Run& run) {
    for (int first = 0, parts = (count + Most - 1) / Most; parts > 0; --parts) {
        const int size = (count - first + parts - 1) / parts;
        [&]<int... I>(std::integer_sequence<int, I...>) {
            ((size == I + 1 ? run.template operator()<I + 1>(first) : void()), ...);
        }(std::make_integer_sequence<int, Most>{});
        first += size;
    }
}

// Calls run.template operator()<P, E>(pair, e) for P pairs and E * 16 of their outputs from e on, until all are done.
template <class Run>
inline void by_tiles(int num_pairs, int head_dim, const Run& run) {
    by_parts<kPairsAside>(num_pairs, [&]<int P>(int pair) {
        int e = 0;
        for (; head_dim - e >= kSide * kTile; e += kSide * kTile)
            run.template operator()<P, kSide>(pair, e);
        for (; e < head_dim; e += kTile) run.template operator()<P, 1>(pair, e);
    });
}

// Adds weights times values to E * 16 outputs of every pair. What lies `ahead` bytes behind the values is fetched.
template <class T, int P, int E>
void add_lanes(const T* const* rows, int head_dim, int count, const float* weights,
               Attended* states, int first, std::ptrdiff_t ahead) {
    F acc[P][E];
    for (int p = 0; p < P; ++p)
        for (int e = 0; e < E; ++e) acc[p][e] = load(states[p].out + first + e * kTile);
    for (int j = 0; j < count; ++j) {
        const ValueRow<T> row(rows[j], head_dim);
        fetch(rows[j] + first, E * kTile, ahead);
        F value[E];
        for (int e = 0; e < E; ++e) value[e] = row.lanes(first + e * kTile);
#pragma GCC unroll 6
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
                Attended* states, int num_pairs, std::ptrdiff_t ahead) {
    by_tiles(num_pairs, head_dim, [&]<int P, int E>(int p, int e) {
        add_lanes<T, P, E>(rows, head_dim, count, weights + p * kChunk, states + p, e, ahead);
    });
}

// Weights of pairs as codes, 0 to 127, of the values of 4 rows at a time, from row `first` of a slot on.
struct CodedWeights {
    std::uint8_t* codes;  // (pairs, 4 * num_groups), with kNoWeight added
    int first, num_groups;

    std::uint8_t* of(int pair) const { return codes + pair * 4 * num_groups; }
};
inline constexpr std::uint8_t kNoWeight = kIsOffset8 ? 0 : 128;  // so that dots are those of the codes

// Adds weights times int8 values to E * 16 outputs of P pairs: sums of whole numbers, exact in any order, times a
// factor a pair.
template <int P, int E, std::size_t N>
void add_dots(const KvHead& head, const CodedWeights (&weights)[N], int pair, int first, const float* factors,
              Attended* states, std::ptrdiff_t ahead) {
    Wide acc[P][E];
    for (int p = 0; p < P; ++p)
        for (int e = 0; e < E; ++e) acc[p][e] = zero_wide();
    for (const CodedWeights& part : weights)
        for (int g = 0; g < part.num_groups; ++g) {
            const int row = part.first + 4 * g;
            const std::uint8_t* values = head.values<std::uint8_t>(row / kChunk) +
                                         row % kChunk * head.value_dim + 4 * first;
            Bytes value[E];
            for (int e = 0; e < E; ++e) fetch(values + e * 4 * kTile, 4 * kTile, ahead);
            for (int e = 0; e < E; ++e) value[e] = load_bytes(values + e * 4 * kTile);
#pragma GCC unroll 6
            for (int p = 0; p < P; ++p) {
                const Four weight = four(part.of(pair + p) + 4 * g);
#pragma GCC unroll 4
                for (int e = 0; e < E; ++e) add_flat8(acc[p][e], weight, value[e]);
            }
        }
    for (int p = 0; p < P; ++p)
        for (int e = 0; e < E; ++e) {
            float* out = states[pair + p].out + first + e * kTile;
            store(out, fma(to_float(acc[p][e]), splat(factors[pair + p]), load(out)));
        }
}

// int4 values are unpacked once for all pairs, as many rows at a time as stay in the processor's cache.
inline constexpr int kUnpacked = kChunk * 128;
static_assert(kUnpacked >= kWidestInt4);

inline void add_values(const std::uint8_t* const* rows, int head_dim, int count,
                       const float* weights, Attended* states, int num_pairs,
                       std::ptrdiff_t ahead) {
    float values[kUnpacked];
    const float* unpacked[kChunk];
    const int most = kUnpacked / head_dim;
    for (int first = 0; first < count; first += most) {
        const int num = count - first < most ? count - first : most;
        for (int j = 0; j < num; ++j) {
            fetch(rows[first + j], static_cast<int>(int4_row_nbytes(head_dim)), ahead);
            const ValueRow<std::uint8_t> row(rows[first + j], head_dim);
            float* out = values + j * head_dim;
            for (int e = 0; e < head_dim; e += kTile) store(out + e, row.lanes(e));
            unpacked[j] = out;
        }
        add_values(unpacked, head_dim, num, weights + first, states, num_pairs, 0);
    }
}

// Turns a pair's weights (64), times the values' scales, into codes. Returns what these are multiplied by, NaN if a
// weight is not finite.
inline float code_weights(float* weights, const float* scales, std::uint8_t* codes) {
    for (int j = 0; j < kChunk; j += kTile) store(weights + j, mul(load(weights + j), load(scales + j)));
    const RowScale row = row_scale(weights, kChunk);
    for (int j = 0; j < kChunk; j += kTile)
        row_codes(weights + j, row, reinterpret_cast<std::int8_t*>(codes) + j);
    for (int j = 0; j < kChunk; ++j) codes[j] ^= kNoWeight;
    return row.scale;
}

}  // namespace forerun::FORERUN_ISA
