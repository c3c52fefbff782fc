// How keys and values lie in a cache page, for each form: how rows are written, scores of blocks of
// keys, and lanes of values. attention.h uses them. Keys and values may have different forms, and widths E.
//
// Floats whose values are part of their keys lie as values do, once (shares_kv). Else:
// Keys, per block of 16 rows:   floats (E, 16)   int8 (E / 4, 16, 4)   int4 (E / 8, 16, 4), dimensions
//                               8 i + 0..3 in the low halves of bytes, 8 i + 4..7 in the high ones
// key factors, of 64 rows:      -                scales (E / 32, 64)   scales, then minima (E / 32, 64)
//                                                fp16                  fp16
// values, per row:              floats (E)       -                     per 32 dimensions 16 bytes, the
//                               first 16 in the low halves; then scale, minimum (E / 32, 2) fp16
//         per 4 rows:           -                int8 (E, 4)           -
// value factors:                -                scales (64) fp32      -
//
// int8: value = scale * code, scale = largest / 127, of a row of values and of 32 dimensions of a key:
// some dimensions of keys are many times the others. int4: value = scale * code + minimum, scale =
// (largest - minimum) / 15. Queries are rounded like int8 values, so a score is a few
// sums of whole numbers times factors: exact, and the same on every instruction set. So are the sums of int8 values:
// their weights are rounded like them, for a chunk and a query head at a time. A row with NaN or infinity gets NaN
// factors: whoever sees it gets NaN, no other row does.

#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/half.h"
#include "model/types.h"

namespace forerun::FORERUN_ISA {

// Forms by name; floats are their own.
struct Int8 {};
struct Int4 {};

// A query head as codes.
struct CodedQuery {
    const std::int8_t* codes;
    float scale;
    const std::int32_t* sums;  // of 32 codes each
};

// What values are stored in, how queries are given to keys, and how many blocks of keys are computed
// side by side on wide registers.
template <class T>
struct KvTypes {
    using Query = const float*;
    using Value = T;
    static constexpr int kSide = kRowTile >= 8 ? 4 : 1;
};
template <>
struct KvTypes<Int8> {
    using Query = CodedQuery;
    static constexpr int kSide = kRowTile >= 8 ? 2 : 1;
};
template <>
struct KvTypes<Int4> {
    using Query = CodedQuery;
    using Value = std::uint8_t;
    static constexpr int kSide = kRowTile >= 8 ? 2 : 1;
};

// Fetches what lies `ahead` bytes behind numbers that are read now: the processor sees no order in the blocks of
// a table, and fetched all at once they would wait for each other.
template <class T>
inline void fetch(const T* numbers, int count, std::ptrdiff_t ahead) {
    const auto first = reinterpret_cast<std::uintptr_t>(numbers) + static_cast<std::uintptr_t>(ahead);
    for (std::size_t i = 0; i < count * sizeof(T); i += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(first + i));
}

// Scores of B blocks of keys from row `row` of a chunk on, 16 floats each, at out + pair * stride.
template <class T, int P, int B>
void score_blocks(const KvHead& head, int chunk, int row, const float* const* q, float* out,
                  std::size_t stride) {
    const int head_dim = head.head_dim;
    const T* keys = head.keys<T>(chunk) + row * head_dim;
    const auto ahead = static_cast<std::ptrdiff_t>(head.page->values);
    F acc[P][B];
    for (auto& sums : acc)
        for (F& sum : sums) sum = splat(0.0f);
    for (int e = 0; e < head_dim; ++e) {
        F key[B];
        for (int b = 0; b < B; ++b) fetch(keys + (b * head_dim + e) * kTile, kTile, ahead);
        for (int b = 0; b < B; ++b) key[b] = load(keys + (b * head_dim + e) * kTile);
#pragma GCC unroll 6
        for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
            for (int b = 0; b < B; ++b) acc[p][b] = fma(splat(q[p][e]), key[b], acc[p][b]);
    }
    for (int p = 0; p < P; ++p)
        for (int b = 0; b < B; ++b) store(out + p * stride + b * kTile, acc[p][b]);
}

template <class T, int P, int B>
    requires std::is_same_v<T, Int8>
void score_blocks(const KvHead& head, int chunk, int row, const CodedQuery* q, float* out,
                  std::size_t stride) {
    const int head_dim = head.head_dim;
    const std::uint8_t* keys = head.keys<std::uint8_t>(chunk) + row * head_dim;
    const std::uint16_t* scales = head.key_factors<std::uint16_t>(chunk) + row;
    const auto ahead = static_cast<std::ptrdiff_t>(head.page->values);
    F total[P][B];
    for (auto& sums : total)
        for (F& sum : sums) sum = splat(0.0f);
    for (int g = 0; g < key_groups(head_dim); ++g, scales += kChunk) {
        const int first = g * kGroup, stop = std::min(first + kGroup, head_dim);
        Wide acc[P][B];
        for (int p = 0; p < P; ++p)
            for (int b = 0; b < B; ++b) acc[p][b] = add(zero_wide(), -kByteZero * q[p].sums[g]);
        for (int e = first; e < stop; e += 4) {
            Bytes key[B];
            for (int b = 0; b < B; ++b) fetch(keys + (b * head_dim + e) * kTile, 4 * kTile, ahead);
            for (int b = 0; b < B; ++b) key[b] = load_codes8(keys + (b * head_dim + e) * kTile);
#pragma GCC unroll 6
            for (int p = 0; p < P; ++p)
#pragma GCC unroll 4
                for (int b = 0; b < B; ++b) add_dot8(acc[p][b], key[b], q[p].codes + e);
        }
        for (int b = 0; b < B; ++b) {
            const F scale = load(scales + b * kTile);
            for (int p = 0; p < P; ++p)
                total[p][b] = fma(to_float(acc[p][b]), scale, total[p][b]);
        }
    }
    for (int p = 0; p < P; ++p)
        for (int b = 0; b < B; ++b)
            store(out + p * stride + b * kTile, mul(total[p][b], splat(q[p].scale)));
}

template <class T, int P, int B>
    requires std::is_same_v<T, Int4>
void score_blocks(const KvHead& head, int chunk, int row, const CodedQuery* q, float* out,
                  std::size_t stride) {
    const int groups = head.head_dim / kGroup, block_nbytes = head.head_dim / 2 * kTile;
    const std::uint8_t* keys = head.keys<std::uint8_t>(chunk) + row / kTile * block_nbytes;
    const std::uint16_t* factors = head.key_factors<std::uint16_t>(chunk) + row;
    F total[P][B];
    for (auto& sums : total)
        for (F& sum : sums) sum = splat(0.0f);
    for (int g = 0; g < groups; ++g, factors += kChunk) {
        Narrow acc[P][B];
#pragma GCC unroll 4
        for (int i = 0; i < kGroup / 8; ++i) {
            const int e = g * kGroup + 8 * i;
#pragma GCC unroll 2
            for (int b = 0; b < B; ++b) {
                const std::uint8_t* both_codes = keys + b * block_nbytes + e / 2 * kTile;
                fetch(both_codes, 4 * kTile, static_cast<std::ptrdiff_t>(head.page->values));
                const Bytes both = load_bytes(both_codes);
                const Bytes first = bits(both, 0, 15), second = bits(both, 4, 15);
#pragma GCC unroll 6
                for (int p = 0; p < P; ++p) {
                    if (i == 0)
                        acc[p][b] = first_dot(first, q[p].codes + e);
                    else
                        add_dot(acc[p][b], first, q[p].codes + e);
                    add_dot(acc[p][b], second, q[p].codes + e + 4);
                }
            }
        }
        for (int b = 0; b < B; ++b) {
            const F scale = load(factors + b * kTile),
                    least = load(factors + groups * kChunk + b * kTile);
            for (int p = 0; p < P; ++p) {
                const F sum = splat(static_cast<float>(q[p].sums[g]));
                total[p][b] = fma(to_float(widen(acc[p][b])), scale, total[p][b]);
                total[p][b] = fma(sum, least, total[p][b]);
            }
        }
    }
    for (int p = 0; p < P; ++p)
        for (int b = 0; b < B; ++b)
            store(out + p * stride + b * kTile, mul(total[p][b], splat(q[p].scale)));
}

// One row of values, 16 at a time.
template <class T>
struct ValueRow {
    const T* values;
    ValueRow(const T* row, int) : values(row) {}
    F lanes(int first) const { return load(values + first); }
};
template <>
struct ValueRow<std::uint8_t> {  // int4
    const std::uint8_t* codes;
    float factors[kWidestInt4 / kGroup * 2];  // scale, minimum of each group
    ValueRow(const std::uint8_t* row, int head_dim) : codes(row) {
        const auto* stored = reinterpret_cast<const std::uint16_t*>(row + head_dim / 2);
        for (int i = 0; i < head_dim / kGroup * 2; i += kTile) store(factors + i, load(stored + i));
    }
    F lanes(int first) const {
        const int group = first / kGroup;
        const std::uint8_t* bytes = codes + group * kTile;
        const F code = first % kGroup ? load_high4(bytes) : load_low4(bytes);
        return fma(code, splat(factors[2 * group]), splat(factors[2 * group + 1]));
    }
};

// --- writing rows ---

// How a row becomes int8.
struct RowScale {
    float scale, inverse;
    bool is_finite;
};
inline RowScale row_scale(const float* x, int head_dim) {
    F top = splat(0.0f), flag = splat(0.0f);
    for (int e = 0; e < head_dim; e += kTile) {
        top = max(top, abs(load(x + e)));
        flag = add(flag, mul(load(x + e), splat(0.0f)));  // NaN if anything is not finite
    }
    const float size = largest(top), nan_flag = sum(flag);
    if (nan_flag != 0.0f) return {nan_flag, 0.0f, false};
    // Below 1e-30 the reciprocal could overflow; such a row is 0 to any int8 grid.
    return size < 1e-30f ? RowScale{0.0f, 0.0f, true} : RowScale{size / 127.0f, 127.0f / size, true};
}
inline int row_codes(const float* x, const RowScale& row, std::int8_t* codes) {  // of 16
    return store_int8(codes, row.is_finite ? mul(load(x), splat(row.inverse)) : splat(0.0f));
}

inline void quantize_query(const float* x, int head_dim, std::int8_t* codes, float* scale,
                           std::int32_t* sums) {
    const RowScale row = row_scale(x, head_dim);
    *scale = row.scale;
    std::fill_n(sums, key_groups(head_dim), 0);
    for (int e = 0; e < head_dim; e += kTile) sums[e / kGroup] += row_codes(x + e, row, codes + e);
}

// How a key's numbers, 32 at most, become int8. Returns the scale as fp16.
inline std::uint16_t key_codes(const float* x, int count, std::int8_t* codes) {
    const RowScale row = row_scale(x, count);
    const std::uint16_t scale = row.is_finite ? float_to_half(row.scale) : std::uint16_t{0x7E00};
    const float rounded = half_to_float(scale);
    const F inverse = splat(rounded > 0.0f ? 1.0f / rounded : 0.0f), most = splat(127.0f),
            zero = splat(0.0f), least = splat(-127.0f);
    for (int e = 0; e < count; e += kTile)
        store_int8(codes + e, row.is_finite ? max(least, min(most, mul(load(x + e), inverse))) : zero);
    return scale;
}

// How 32 numbers become int4: codes 0..15, as bytes.
struct GroupFactors {
    std::uint16_t scale, least;  // fp16
};
inline GroupFactors group_codes(const float* x, std::int8_t* codes) {
    const F a = load(x), b = load(x + kTile), zero = splat(0.0f);
    const float flag = sum(add(mul(a, zero), mul(b, zero)));
    if (flag != 0.0f) {
        store_int8(codes, zero);
        store_int8(codes + kTile, zero);
        return {0x7E00, 0};
    }
    const float top = largest(max(a, b)), bottom = -largest(max(sub(zero, a), sub(zero, b)));
    const GroupFactors factors{float_to_half((top - bottom) / 15.0f), float_to_half(bottom)};
    const float scale = half_to_float(factors.scale);
    const F least = splat(half_to_float(factors.least)),
            inverse = splat(scale > 0.0f ? 1.0f / scale : 0.0f), most = splat(15.0f);
    store_int8(codes, min(most, max(zero, mul(sub(a, least), inverse))));
    store_int8(codes + kTile, min(most, max(zero, mul(sub(b, least), inverse))));
    return factors;
}

// A row of floats, `width` wide, where values lie.
template <class T>
void write_row(const KvHead& head, int chunk, int row, const float* x, int width) {
    T* values = head.values<T>(chunk) + row * width;
    for (int e = 0; e < width; e += kTile) store(values + e, load(x + e));
}

template <class T>
void write_key(const KvHead& head, int chunk, int row, const float* k) {
    if (head.page->shares_kv) return write_row<T>(head, chunk, row, k, head.head_dim);
    T* block = head.keys<T>(chunk) + row / kTile * kTile * head.head_dim;
    for (int e = 0; e < head.head_dim; e += kTile) {
        T part[kTile];
        store(part, load(k + e));
        for (int i = 0; i < kTile; ++i) block[(e + i) * kTile + row % kTile] = part[i];
    }
}
template <>
inline void write_key<Int8>(const KvHead& head, int chunk, int row, const float* k) {
    std::uint16_t* scales = head.key_factors<std::uint16_t>(chunk) + row;
    std::uint8_t* block = head.keys<std::uint8_t>(chunk) + row / kTile * kTile * head.head_dim;
    for (int first = 0; first < head.head_dim; first += kGroup, scales += kChunk) {
        const int count = std::min(kGroup, head.head_dim - first);
        std::int8_t codes[kGroup];
        *scales = key_codes(k + first, count, codes);
        for (int i = 0; i < count; ++i)
            block[(first + i) / 4 * 4 * kTile + row % kTile * 4 + i % 4] =
                static_cast<std::uint8_t>(codes[i] + 128);
    }
}
template <>
inline void write_key<Int4>(const KvHead& head, int chunk, int row, const float* k) {
    const int groups = head.head_dim / kGroup;
    std::uint16_t* factors = head.key_factors<std::uint16_t>(chunk) + row;
    std::uint8_t* block =
        head.keys<std::uint8_t>(chunk) + row / kTile * kTile * (head.head_dim / 2) + row % kTile * 4;
    for (int g = 0; g < groups; ++g) {
        std::int8_t codes[kGroup];
        const GroupFactors own = group_codes(k + g * kGroup, codes);
        factors[g * kChunk] = own.scale;
        factors[(groups + g) * kChunk] = own.least;
        for (int e = 0; e < kGroup; e += 8)
            for (int i = 0; i < 4; ++i)
                block[(g * kGroup + e) / 2 * kTile + i] =
                    static_cast<std::uint8_t>(codes[e + i] | codes[e + 4 + i] << 4);
    }
}

template <class T>
void write_value(const KvHead& head, int chunk, int row, const float* v) {
    if (!head.page->shares_kv) write_row<T>(head, chunk, row, v, head.value_dim);
}
template <>
inline void write_value<Int8>(const KvHead& head, int chunk, int row, const float* v) {
    const RowScale scale = row_scale(v, head.value_dim);
    head.value_factors<float>(chunk)[row] = scale.scale;
    std::int8_t* values = head.values<std::int8_t>(chunk) + row / 4 * 4 * head.value_dim + row % 4;
    for (int e = 0; e < head.value_dim; e += kTile) {
        std::int8_t codes[kTile];
        row_codes(v + e, scale, codes);
        for (int i = 0; i < kTile; ++i) values[(e + i) * 4] = codes[i];
    }
}
template <>
inline void write_value<Int4>(const KvHead& head, int chunk, int row, const float* v) {
    std::uint8_t* values = head.values<std::uint8_t>(chunk) + row * int4_row_nbytes(head.value_dim);
    auto* factors = reinterpret_cast<GroupFactors*>(values + head.value_dim / 2);
    for (int g = 0; g < head.value_dim / kGroup; ++g, values += kTile) {
        std::int8_t codes[kGroup];
        factors[g] = group_codes(v + g * kGroup, codes);
        for (int i = 0; i < kTile; ++i)
            values[i] = static_cast<std::uint8_t>(codes[i] | codes[kTile + i] << 4);
    }
}

// Calls run.template operator()<T>() for the form's T.
template <class Run>
inline void by_form(KvForm form, const Run& run) {
    switch (form) {
        case KvForm::F32: return run.template operator()<float>();
        case KvForm::F16: return run.template operator()<std::uint16_t>();
        case KvForm::Int8: return run.template operator()<Int8>();
        case KvForm::Int4: return run.template operator()<Int4>();
    }
}

inline void write_key(const KvHead& head, int slot_row, const float* k) {
    by_form(head.page->forms.keys,
            [&]<class T>() { write_key<T>(head, slot_row / kChunk, slot_row % kChunk, k); });
}
inline void write_value(const KvHead& head, int slot_row, const float* v) {
    by_form(head.page->forms.values,
            [&]<class T>() { write_value<T>(head, slot_row / kChunk, slot_row % kChunk, v); });
}

}  // namespace forerun::FORERUN_ISA
