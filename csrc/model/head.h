// A head: a matrix that many rows are multiplied by, whose outputs are logits: all of them, the largest, or some
// columns. Also any linear map by itself.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "kernels/formats.h"
#include "model/pass.h"
#include "model/runtime.h"
#include "model/scored.h"
#include "model/types.h"

namespace forerun {

// `vocab_size` rows of the matrix are read, of rows `width` wide. Logits are capped (0: not) and divided.
struct HeadShape {
    int vocab_size = 0, width = 0;
    float cap = 0.0f, divisor = 1.0f;
};

class Head {
  public:
    // Reads `weights`, or `embedding` while they are not set. Both stay where they are and may be set anew between
    // passes.
    Head(Runtime& runtime, const HeadShape& shape, const Linear& weights, const Linear* embedding = nullptr);
    // Of weights of its own.
    Head(Runtime& runtime, const HeadShape& shape, Packed weights);
    ~Head();
    Head(const Head&) = delete;
    Head& operator=(const Head&) = delete;

    // The logits (num_rows, vocabulary) of rows (num_rows, width).
    void logits(const float* rows, int num_rows, float* out);
    // The same for who holds a `PassLock`: it takes the runtime's scratch memory.
    void logits_locked(const float* rows, int num_rows, float* out, std::size_t stride);
    // The k largest logits of each row, (num_rows, k), without writing the others. Descending; NaN
    // counts as the largest, of equal ones the lowest id comes first. `log_sums` (num_rows), null if
    // it is not asked for, becomes the logarithm of each row's sum of e^logit; into `all`, unless
    // null, go the logits as `logits` gives them.
    void topk(const float* rows, int num_rows, int k, std::int64_t* ids, float* values,
              float* log_sums, float* all);
    // Some columns of the logits, (num_rows, ids).
    void columns(const float* rows, int num_rows, std::span<const std::int64_t> ids, float* out);

    // The head of some tokens, whose logits are those of `columns`: it reads its own copy of their rows.
    std::unique_ptr<Head> part(std::span<const std::int64_t> ids) const;
    // The head of the first tokens, whose weights are this one's; it must not outlive it. Throws
    // std::invalid_argument for more than there are.
    std::unique_ptr<Head> first_rows(int num_rows) const;

    const HeadShape& shape() const { return shape_; }
    const Linear& weights() const { return embedding_ && !weights_.tiles ? *embedding_ : weights_; }
    // Bytes of weights of its own.
    std::size_t nbytes() const { return packed_.nbytes(); }
    // Bytes of scratch memory for the largest logit of so many rows and its logarithm.
    std::size_t scratch_nbytes(int num_rows);

  private:
    // What `topk` needs of a pass.
    struct Wanted {
        int k = 0;
        bool log_sums = false;
    };
    // A pass. The units are cut into pieces; piece(thread, units) computes one.
    using Piece = std::function<void(int, const Part&)>;
    void run(const float* rows, int num_rows, int num_units, const Wanted& wanted, const Piece& piece);
    void lay_out(Scratch& scratch, const Wanted& wanted);
    void run_phases(Worker& worker);
    void read_row(int row);
    int num_tiles() const { return (shape_.vocab_size + kTile - 1) / kTile; }
    int num_blocks() const { return (num_tiles() + kHeadTiles - 1) / kHeadTiles; }
    float log_sum(int row) const;
    template <class Take>
    void read_tiles(int thread, const Part& tiles, const Take& take);

    Runtime& runtime_;
    const Kernels& kernels_;
    Pool& pool_;
    const HeadShape shape_;
    const Packed packed_;  // if it has weights of its own
    const Linear& weights_;
    const Linear* const embedding_;

    const float* input_ = nullptr;
    int num_rows_ = 0, num_units_ = 0;
    const Piece* piece_ = nullptr;
    // In the runtime's scratch memory.
    Rows rows_;
    float* scratch_ = nullptr;  // (threads, scratch_stride_)
    std::size_t scratch_stride_ = 0;
    Scored* largest_ = nullptr;  // (threads, rows, k)
    float *block_largest_ = nullptr, *block_sum_ = nullptr;  // (rows, block_stride_): of kHeadTiles
    int block_stride_ = 0;                                   // in whole tiles
};

}  // namespace forerun
