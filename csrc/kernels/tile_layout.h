// Where the numbers of a weight tile lie; kernels/linear.h draws it.

#pragma once

#include <cstddef>

#include "kernels/blocks.h"
#include "model/types.h"

namespace forerun {

inline constexpr std::size_t kLine = 64;

// Codes are laid out for 32 inputs, whatever the group: one or two scales follow them.
inline constexpr int kUnit = kGroup;

static inline int codes_nbytes(const WeightFormat& f) { return kTile * kUnit * f.bits / 8; }

static inline int unit_nbytes(const WeightFormat& f) {
    return codes_nbytes(f) + kUnit / f.group * scales_nbytes(f.scales);
}

static inline std::size_t tile_nbytes(const WeightFormat& f, int num_in) {
    if (f.is_float()) {
        const int num_scales = f.scales == Scales::None ? 0 : (num_in + f.group - 1) / f.group;
        return static_cast<std::size_t>(num_in) * kTile * f.bits / 8 + num_scales * kLine;
    }
    return head_nbytes(f.scales) + static_cast<std::size_t>(num_in / kUnit) * unit_nbytes(f) +
           static_cast<std::size_t>(num_in / kSuper) * factors_nbytes(f.scales);
}

// Where unit u of a tile starts: in front of 8 units of Scales::Super stand their factors.
static inline std::size_t unit_offset(const WeightFormat& f, int u) {
    return head_nbytes(f.scales) + static_cast<std::size_t>(u) * unit_nbytes(f) +
           static_cast<std::size_t>(u / 8 + 1) * factors_nbytes(f.scales);
}

// Where value k of a float tile's first output lies.
static inline std::size_t float_offset(const WeightFormat& f, int k) {
    const std::size_t scales = f.scales == Scales::None ? 0 : (k / f.group + 1) * kLine;
    return static_cast<std::size_t>(k) * kTile * f.bits / 8 + scales;
}

// Bits of a code that lie together below the others: 8, 4 or 2.
static inline int low_bits(const WeightFormat& f) { return f.bits == 8 ? 8 : f.bits >= 4 ? 4 : 2; }

}  // namespace forerun
