// What one query has attended to so far: exponentials relative to the largest score, and how two parts of the keys
// become one.

#pragma once

#include "model/types.h"
#include "kernels/rows.h"

namespace forerun::FORERUN_ISA {

inline constexpr float kNothing = -__builtin_huge_valf();

// Turns a chunk's scores (kNothing where unseen) into exponentials, whose sum is added to the state's. If a
// score is larger than all before, what the state has is scaled to it first (Milakov and Gimelshein, 2018).
inline void exp_scores(float* s, Attended& state, int head_dim) {
    F top = load(s);
    for (int i = kTile; i < kChunk; i += kTile) top = max(top, load(s + i));
    const float chunk_largest = largest(top);
    if (!(chunk_largest <= state.largest)) {  // or NaN
        float factor[kTile];
        store(factor, exp(splat(state.largest - chunk_largest)));
        state.largest = chunk_largest;
        state.total *= factor[0];
        for (int e = 0; e < head_dim; e += kTile)
            store(state.out + e, mul(load(state.out + e), load(factor)));
    }
    F total = splat(0.0f);
    for (int i = 0; i < kChunk; i += kTile) {
        const F e = exp(sub(load(s + i), splat(state.largest)));
        store(s + i, e);
        total = add(total, e);
    }
    state.total += sum(total);
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

}  // namespace forerun::FORERUN_ISA
