// From a checkpoint's blocks to weight tiles, without leaving the checkpoint's grid.

#pragma once

#include <cstdint>

#include "memory.h"
#include "types.h"

namespace forerun {

// The ids of GGUF's tensor types.
enum class Stored : int {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    BF16 = 30
};

// Bytes of one stored row of `num_in` values. Throws std::invalid_argument for a type or width that
// has no tiles.
std::size_t stored_row_nbytes(Stored type, int num_in);

struct Packed {
    Linear linear;
    Buffer memory, bias;
    std::size_t nbytes() const { return memory.nbytes() + bias.nbytes(); }
};

// `rows` holds num_out stored rows, `bias` num_out floats or null.
Packed pack(Stored type, int num_out, int num_in, const std::uint8_t* rows, const float* bias,
            int num_threads);

// Zeroed tiles, and a zeroed bias if there is one, to be filled from elsewhere. Throws
// std::invalid_argument for a width that the kind cannot have.
Packed blank(WeightFormat kind, int num_out, int num_in, bool has_bias);

// The weights of one output, as the kernels mean them: exactly scale * code + minimum.
void unpack_row(const Linear& linear, int row, float* out);

}  // namespace forerun
