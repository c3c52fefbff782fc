// What checkpoints store: blocks of codes with their scales, read a group at a time.

#pragma once

#include <cstdint>
#include <cstring>

#include "model/types.h"

namespace forerun {

inline constexpr int kSuper = 256;  // values of a K block

// One group of one output: codes, and fp16 scale and minimum (minus the zero point, Scales::HalfZero;
// whole numbers, Scales::Super; the exponent's byte).
struct StoredGroup {
    std::uint8_t codes[kGroup];
    std::uint16_t scale, minimum;
};

static inline std::uint16_t half_at(const std::uint8_t* p) {
    std::uint16_t h;
    std::memcpy(&h, p, 2);
    return h;
}

}  // namespace forerun
