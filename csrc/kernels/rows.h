// What a decoder block does to single rows: norms, activations, rotation, quantization. Widths are
// multiples of 16.

#pragma once

#include <array>

#include "model/types.h"

namespace forerun::FORERUN_ISA {

// e^x = 2^n 2^r, n + r = x / ln 2, to about 2e-7 relative and half a unit of x's last place. 0 below -87.7, without
// overflow above 88. The polynomial is minimax on r in [-.5, .5] with 2^0 exact.
inline F exp(F x) {
    const F t = mul(x, splat(1.44269504f));
    const F clamped = min(splat(127.0f), max(splat(-127.0f), t));  // this order lets NaN through
    const F n = round(clamped), r = sub(clamped, n);
    F y = splat(1.326472731e-3f);
    y = fma(y, r, splat(9.671512991e-3f));
    y = fma(y, r, splat(5.550733581e-2f));
    y = fma(y, r, splat(2.402224243e-1f));
    y = fma(y, r, splat(6.931470037e-1f));
    y = fma(y, r, splat(1.0f));
    return mul(y, pow2(n));
}

inline F sigmoid(F x) { return div(splat(1.0f), add(splat(1.0f), exp(sub(splat(0.0f), x)))); }

// x P(x), P the normal distribution's: max(x, 0) - |x| P(-|x|), to 2e-7 |x|. P(-a) = e^(-a a / 2) t Q(t),
// t = 1 / (1 + 0.3 a); Q is minimax, relative, on a in [0, 10].
inline F gelu(F x) {
    const F a = min(splat(10.0f), abs(x)), t = div(splat(1.0f), fma(splat(0.3f), a, splat(1.0f)));
    F y = splat(3.754836693e-2f);
    y = fma(y, t, splat(-1.650789231e-1f));
    y = fma(y, t, splat(2.200876772e-1f));
    y = fma(y, t, splat(-6.652673334e-2f));
    y = fma(y, t, splat(1.354976445e-1f));
    y = fma(y, t, splat(9.775570035e-2f));
    y = fma(y, t, splat(1.211112589e-1f));
    y = fma(y, t, splat(1.196050346e-1f));
    const F tail = mul(mul(y, t), exp(mul(splat(-0.5f), mul(a, a))));
    return sub(max(splat(0.0f), x), mul(a, tail));
}

inline F gelu_tanh(F x) {  // 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
    const F cube = mul(mul(x, x), x);
    return mul(x, sigmoid(mul(splat(1.59576912f), fma(splat(0.044715f), cube, x))));
}

inline F activation(Activation kind, F x) {
    switch (kind) {
        case Activation::Silu: return mul(x, sigmoid(x));
        case Activation::Gelu: return gelu(x);
        case Activation::GeluTanh: return gelu_tanh(x);
        case Activation::Relu: return max(splat(0.0f), x);
        case Activation::Relu2: return mul(max(splat(0.0f), x), max(splat(0.0f), x));
        case Activation::SwigluOai: return mul(x, sigmoid(mul(splat(1.702f), x)));
    }
    return x;
}

inline void activate(Activation kind, const float* gate, const float* up, int count, float* out) {
    const F limit = splat(7.0f), one = splat(1.0f);
    for (int i = 0; i < count; i += kTile) {
        if (kind == Activation::SwigluOai) {
            const F linear = max(sub(splat(0.0f), limit), min(limit, load(up + i)));
            store(out + i, mul(add(linear, one), activation(kind, min(limit, load(gate + i)))));
            continue;
        }
        const F y = activation(kind, load(gate + i));
        store(out + i, up ? mul(y, load(up + i)) : y);
    }
}

// x sigmoid(gate), of an LSTM's cell.
inline void gate(const float* gate, const float* x, int count, float* out) {
    for (int i = 0; i < count; i += kTile)
        store(out + i, mul(load(x + i), sigmoid(load(gate + i))));
}

// Columns column..column+count of one row as int8: scale = largest / 127, nearest, ties to even. A
// group with NaN or infinity gets codes 0 and scale NaN, so that the row's results are NaN and no
// other row's are.
inline void quantize(const float* x, const Rows& rows, int row, int column, int count) {
    std::size_t g = rows.first_group(row) + column / kGroup * kRowsAside;
    for (int i = 0; i < count; i += kGroup, x += kGroup, g += kRowsAside) {
        const F a = load(x), b = load(x + kTile);
        const float largest_size = largest(max(abs(a), abs(b)));
        const float nan_flag = sum(add(mul(a, splat(0.0f)), mul(b, splat(0.0f))));  // 0 or NaN
        const bool is_finite = nan_flag == 0.0f;
        // Below 1e-30 the reciprocal could overflow; such a group is 0 to any int8 grid.
        const bool is_zero = !is_finite || largest_size < 1e-30f;
        const F inverse = splat(is_zero ? 0.0f : 127.0f / largest_size);
        const F zero = splat(0.0f);
        std::int8_t* q = rows.q + g * kGroup;
        const int first = store_int8(q, is_finite ? mul(a, inverse) : zero);
        const int second = store_int8(q + kTile, is_finite ? mul(b, inverse) : zero);
        rows.half_sum[2 * g] = first;
        rows.half_sum[2 * g + 1] = second;
        rows.scale[g] = is_finite ? (is_zero ? 0.0f : largest_size / 127.0f) : nan_flag;
        rows.sum[g] = rows.scale[g] * static_cast<float>(first + second);
    }
}

// Columns column..column+count of one row, which is flattened. Numbers beyond the range are cut to
// it, also infinite ones; NaN becomes its lower end.
inline void flatten(const float* x, const Flattening& flat, const Rows& rows, int row, int column,
                    int count) {
    auto* codes = reinterpret_cast<std::uint8_t*>(rows.q);
    const std::size_t first = rows.first_group(row);
    const auto place = [&](int p) {
        return codes + (first + p / kGroup * kRowsAside) * kGroup + p % kGroup;
    };
    const F low = splat(-flat.limit), high = splat(flat.limit), zero = splat(kCodeZero);
    for (int i = 0; i < count; i += kTile) {
        const F code = round(mul(load(x + i), load(flat.inverse + column + i)));
        store_uint8(place(column + i), add(min(max(code, low), high), zero));
    }
    for (int i = flat.first[column / kGroup]; i < flat.first[(column + count) / kGroup]; ++i) {
        const float code = __builtin_nearbyintf(x[flat.source[i] - column] *
                                                flat.inverse[flat.source[i]]);
        const auto within = [&](float limit) {
            const float above = code > -limit ? code : -limit;
            return above < limit ? above : limit;
        };
        const float more = within(flat.high[i]) - within(flat.low[i]);
        *place(flat.num_in + i) = static_cast<std::uint8_t>(static_cast<int>(more) + kCodeZero);
    }
}

// The sums and differences of lanes `Distance` apart, in place of the lower and of the upper ones.
template <int Distance>
inline F add_lanes(F x) {
    alignas(64) static constexpr auto signs = [] {
        std::array<float, kTile> s{};
        for (int i = 0; i < kTile; ++i) s[i] = i & Distance ? -1.0f : 1.0f;
        return s;
    }();
    return fma(x, load(signs.data()), swap_lanes<Distance>(x));
}

// A group of inputs by Hadamard's matrix of 32, which spreads what is large in one of them: sums and
// differences at distances 1, 2, 4, 8, 16.
inline void hadamard(F& low, F& high) {
    const auto within = [](F x) { return add_lanes<8>(add_lanes<4>(add_lanes<2>(add_lanes<1>(x)))); };
    const F a = within(low), b = within(high);
    low = add(a, b);
    high = sub(a, b);
}

// A whole row with a scale of its own, for which NaN and infinity do as in `quantize`.
inline void flatten_by_row(const float* x, const Flattening& flat, const Rows& rows, int row) {
    const auto group = [&](int i, F (&y)[2]) {
        for (int h = 0; h < 2; ++h)
            y[h] = mul(load(x + i + h * kTile), load(flat.inverse + i + h * kTile));
        if (flat.uses_hadamard) hadamard(y[0], y[1]);
    };
    F top = splat(0.0f), nan = splat(0.0f), y[2];
    for (int i = 0; i < flat.num_in; i += kGroup) {
        group(i, y);
        for (const F half : y) {
            top = max(top, abs(half));
            nan = add(nan, mul(half, splat(0.0f)));
        }
    }
    const float largest_size = largest(top), nan_flag = sum(nan);
    const bool is_finite = nan_flag == 0.0f, is_zero = !is_finite || largest_size < 1e-30f;
    const F inverse = splat(is_zero ? 0.0f : 127.0f / largest_size), zero = splat(kCodeZero);
    auto* codes = reinterpret_cast<std::uint8_t*>(rows.q);
    const std::size_t first = rows.first_group(row);
    for (int i = 0; i < flat.num_in; i += kGroup) {
        group(i, y);
        for (int h = 0; h < 2; ++h)
            store_uint8(codes + (first + i / kGroup * kRowsAside) * kGroup + h * kTile,
                        is_finite ? add(round(mul(y[h], inverse)), zero) : zero);
    }
    rows.scale[first] = is_finite ? (is_zero ? 0.0f : largest_size / 127.0f) : nan_flag;
}

inline void norm(const float* x, const Norm& norm, int width, float* out) {
    const float count = static_cast<float>(width);
    F mean = splat(0.0f);
    if (norm.is_layer) {
        for (int i = 0; i < width; i += kTile) mean = add(mean, load(x + i));
        mean = splat(sum(mean) / count);
    }
    F square = splat(0.0f);
    for (int i = 0; i < width; i += kTile) {
        const F centred = sub(load(x + i), mean);
        square = fma(centred, centred, square);
    }
    const F factor = splat(1.0f / __builtin_sqrtf(sum(square) / count + norm.eps));
    for (int i = 0; i < width; i += kTile) {
        const F y = mul(sub(load(x + i), mean), factor), weight = load(norm.weight + i);
        store(out + i, norm.bias ? fma(y, weight, load(norm.bias + i)) : mul(y, weight));
    }
}

// Rotates pairs (i, i + half) of one head by its row's angles; dimensions from 2 * half on stay.
inline void rotate(const Rope& rope, int row, float* head) {
    const float* cos = rope.cos + static_cast<std::size_t>(row) * rope.half;
    const float* sin = rope.sin + static_cast<std::size_t>(row) * rope.half;
    int i = 0;
    for (; i + kTile <= rope.half; i += kTile) {
        const F a = load(head + i), b = load(head + rope.half + i), c = load(cos + i),
                s = load(sin + i);
        store(head + i, sub(mul(a, c), mul(b, s)));
        store(head + rope.half + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < rope.half; ++i) {
        const float a = head[i], b = head[rope.half + i];
        head[i] = a * cos[i] - b * sin[i];
        head[rope.half + i] = b * cos[i] + a * sin[i];
    }
}

// The sum of weight e^(x - largest), NaN if any of x is; weight null: ones.
inline float exp_sum(const float* x, const float* weight, int count, float* largest_x) {
    F top = load(x);
    for (int i = kTile; i < count; i += kTile) top = max(top, load(x + i));
    *largest_x = largest(top);
    const F base = splat(__builtin_isinf(*largest_x) ? 0.0f : *largest_x);
    F total = splat(0.0f);
    for (int i = 0; i < count; i += kTile) {
        const F e = exp(sub(load(x + i), base));
        total = weight ? fma(load(weight + i), e, total) : add(total, e);
    }
    return sum(total);
}

// The first of x[first..count) that is not below the limit, count if none. Reads whole vectors.
inline int find(const float* x, int first, int count, float limit) {
    for (int i = first; i < count; i += kTile)
        if (const unsigned lanes = not_below(load(x + i), limit)) {
            const int found = i + __builtin_ctz(lanes);
            return found < count ? found : count;
        }
    return count;
}

inline void scale(float* x, int count, float factor) {
    for (int i = 0; i < count; i += kTile) store(x + i, mul(load(x + i), splat(factor)));
}

// x becomes limit tanh(x / limit); tanh u = 2 sigmoid(2 u) - 1.
inline void cap(float* x, int count, float limit) {
    const F inverse = splat(2.0f / limit), twice = splat(2.0f * limit), once = splat(-limit);
    for (int i = 0; i < count; i += kTile)
        store(x + i, fma(twice, sigmoid(mul(load(x + i), inverse)), once));
}

}  // namespace forerun::FORERUN_ISA
