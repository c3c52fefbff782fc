// Sums of a row's numbers in one order, whatever computes them.

#pragma once

#include "model/types.h"

namespace forerun {

// The sum of term(i) over i < count, whole tiles of them: in 16 sums, which are added in order.
template <class Term>
float sum_of(int count, const Term& term) {
    float sums[kTile] = {}, total = 0.0f;
    for (int i = 0; i < count; i += kTile)
        for (int lane = 0; lane < kTile; ++lane) sums[lane] += term(i + lane);
    for (float sum : sums) total += sum;
    return total;
}

inline float dot(const float* x, const float* y, int count) {
    return sum_of(count, [&](int i) { return x[i] * y[i]; });
}

}  // namespace forerun
