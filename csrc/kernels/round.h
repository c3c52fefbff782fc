// Rounding to nearest: numbers become a checkpoint's blocks of 32.

#pragma once

#include <cstdint>

#include "model/types.h"

namespace forerun {

// Rounds `count` numbers into blocks of q8_0 (a scale, signed codes) or q4_1 (a scale, the minimum, nibbles); those with a
// number that is not finite are all NaN.
// Throws std::invalid_argument for another format, or a count that is not a multiple of 32.
void round_blocks(const WeightFormat& format, const float* values, std::size_t count, std::uint8_t* blocks);

}  // namespace forerun
