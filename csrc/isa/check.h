// What the checks of kernels share: what a kernel wrote, and numbers to run it on. Every kernel has a
// check that runs it, and no other, on a small sample with odd sizes and awkward numbers, and notes all
// that it wrote.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>
#include <vector>

#include "model/types.h"
#include "kernels/formats.h"

namespace forerun {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
inline std::vector<float> numbers(std::size_t count, std::uint32_t seed = 1) {
    std::vector<float> values(count);
    for (float& value : values) {
        seed = seed * 1664525u + 1013904223u;
        value = static_cast<float>(static_cast<std::int32_t>(seed)) * 0x1p-29f;
    }
    return values;
}

// Ends of the ranges of exp, of fp16 and of int8 groups; ties of roundings.
inline constexpr float kAwkward[] = {-0.0f,  kNaN,  kInfinity, -kInfinity, 1e-38f, 1e-41f, -87.4f,
                                     88.5f,  65520.0f, -65519.0f, 6e-8f, 127.0f, 4.5f, 2049.0f};

// Groups of 32 numbers, each with an awkward one among them; then one of zeros.
inline std::vector<float> awkward() {
    std::vector<float> values = numbers((std::size(kAwkward) + 1) * kGroup);
    for (std::size_t i = 0; i < std::size(kAwkward); ++i)
        values[i * kGroup + (7 * i + 3) % kGroup] = kAwkward[i];
    std::fill(values.end() - kGroup, values.end(), 0.0f);
    return values;
}

// Linear layers, and what is done with rows, one by one: check_rows.cpp.
void check_pack_rows(const Kernels& kernels, Results& results);
void check_linear(const Kernels& kernels, Results& results);
void check_quantize(const Kernels& kernels, Results& results);
void check_flatten(const Kernels& kernels, Results& results);
void check_flatten_by_row(const Kernels& kernels, Results& results);
void check_norm(const Kernels& kernels, Results& results);
void check_activate(const Kernels& kernels, Results& results);
void check_gate(const Kernels& kernels, Results& results);
void check_rotate(const Kernels& kernels, Results& results);
void check_scale(const Kernels& kernels, Results& results);
void check_cap(const Kernels& kernels, Results& results);
void check_exp_sum(const Kernels& kernels, Results& results);
void check_find(const Kernels& kernels, Results& results);
void check_noise(const Kernels& kernels, Results& results);
void check_find_score(const Kernels& kernels, Results& results);
void check_peak(const Kernels& kernels, Results& results);
void check_float_peak(const Kernels& kernels, Results& results);

// Attention over the cache, convolutions and recurrent layers: check_mixers.cpp.
void check_quantize_query(const Kernels& kernels, Results& results);
void check_write_key(const Kernels& kernels, Results& results);
void check_write_value(const Kernels& kernels, Results& results);
void check_attend(const Kernels& kernels, Results& results);
void check_merge(const Kernels& kernels, Results& results);
void check_finish(const Kernels& kernels, Results& results);
void check_convolve(const Kernels& kernels, Results& results);
void check_dot_keys(const Kernels& kernels, Results& results);
void check_recur(const Kernels& kernels, Results& results);
void check_change_state(const Kernels& kernels, Results& results);

}  // namespace forerun
