// The weight formats, and packing: from a checkpoint's blocks to weight tiles, without leaving the
// checkpoint's grid.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "model/memory.h"
#include "model/types.h"

namespace forerun {

std::span<const WeightFormat> weight_formats();
// Throws std::invalid_argument for a name without a format.
const WeightFormat& weight_format(const std::string& name);

// Throws std::invalid_argument for a width that the format has no blocks or tiles for.
void check_width(const WeightFormat& format, int num_in);
// Bytes of one stored row of `num_in` values; throws as `check_width` does.
std::size_t stored_row_nbytes(const WeightFormat& format, int num_in);

struct Packed {
    Linear linear;
    Buffer memory, bias;
    std::unique_ptr<const Flattening> flat = nullptr;  // what `linear` points to
    Buffer places = {};                                // and its arrays, or the order of its inputs
    std::size_t nbytes() const { return memory.nbytes() + bias.nbytes() + places.nbytes(); }
};

// Signed codes (num_out, num_in) with a scale an output, of flattened rows: input j has pieces[j]
// places, x * inverse[j] is rounded to a whole number, and a place holds `limit` at most of what is
// beyond the one before. A limit of 0: rows have scales of their own, and each input one place; they
// may be transformed by Hadamard's matrix.
struct FlatCodes {
    const std::int8_t* codes;
    const float *scales, *inverse;
    const std::int32_t* pieces;
    int limit;
    bool uses_hadamard;
};

// Weights as scale * code + minimum: codes (num_out, num_in), and scales and minima (num_out,
// num_in / group), which are rounded to fp16. Where a format has zero points, `mins` are minus those,
// and weights are scale * (code + min). Codes of f8 are the bytes of e4m3 numbers, and their last
// group may be smaller.
struct Codes {
    const std::int8_t* codes;
    const float *scales, *mins;  // mins null: none
    int group;
    const std::int32_t* order = nullptr;  // which column of a row each input (num_in) is; null: as they are
};

// `rows` holds num_out stored rows, `bias` num_out floats or null.
Packed pack(const Kernels& kernels, const WeightFormat& format, int num_out, int num_in,
            const std::uint8_t* rows, const float* bias, int num_threads);
// Throws std::invalid_argument for a format or a group whose tiles cannot hold the codes, or an order that is none.
Packed pack(const WeightFormat& format, int num_out, int num_in, const Codes& codes,
            const float* bias, int num_threads);
// Throws std::invalid_argument for a format that has no such tiles, or pieces that are out of range.
Packed pack(const WeightFormat& format, int num_out, int num_in, const FlatCodes& codes,
            const float* bias, int num_threads);
// Whether two layers flatten and order the rows that they read alike. Floats are read in their own order.
bool reads_alike(const Linear& a, const Linear& b);
// Zeroed tiles, and a zeroed bias if there is one, to be filled from elsewhere; apart, they are
// mappings of their own, which take no memory until they are filled. Throws std::invalid_argument
// for a width that the format cannot have.
Packed blank(const WeightFormat& format, int num_out, int num_in, bool has_bias,
             bool is_apart = false);
// Some outputs of a layer, as they are stored. Throws std::invalid_argument for one it has not. Of
// flattened rows only those with scales of their own.
Packed gather_rows(const Linear& linear, std::span<const std::int64_t> rows);

// The weights of one output, as the kernels mean them: exactly scale * (code - zero) + minimum. Of
// flattened rows, those of all places (num_in); of those with scales of their own, times `inverse`.
void unpack_row(const Linear& linear, int row, float* out);

// Inputs that share a scale in a checkpoint.
int scale_group(const WeightFormat& format);
// What a weight takes in memory, with its part of the scales.
double bits_per_weight(const WeightFormat& format);
// Stored blocks as whole numbers (num_blocks, block), which are what they mean: minus their zero, or of the format's
// values. Scales are (num_blocks, block / scale_group), and so are, if the format has any, `offsets`: minima, or minus
// the zero points. Throws std::invalid_argument for a format without blocks of codes.
void unpack_blocks(const WeightFormat& format, std::size_t num_blocks, const std::uint8_t* block, std::uint8_t* codes,
                   float* scales, float* offsets);

// Zeroed memory for weights: small pieces share huge pages.
Buffer weight_memory(std::size_t nbytes);
// What is allocated beyond the weights so far goes back to the system.
void trim_weight_memory();

}  // namespace forerun
