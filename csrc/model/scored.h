// Lists of the k largest logits.

#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace forerun {

// A token and its logit.
struct Scored {
    float value;
    std::int32_t id;
};

// What a list holds before anything is put in.
inline constexpr Scored kNoScore{-std::numeric_limits<float>::infinity(),
                                std::numeric_limits<std::int32_t>::max()};

// NaN first, then descending, of equal ones the lowest id.
inline bool is_before(const Scored& a, const Scored& b) {
    if (a.value > b.value || b.value > a.value) return a.value > b.value;
    if (std::isnan(a.value) != std::isnan(b.value)) return std::isnan(a.value);
    return a.id < b.id;
}

// Puts one more into a list of k.
inline void insert(const Scored& scored, Scored* list, int k) {
    if (!is_before(scored, list[k - 1])) return;
    int i = k - 1;
    for (; i > 0 && is_before(scored, list[i - 1]); --i) list[i] = list[i - 1];
    list[i] = scored;
}

}  // namespace forerun
