// Block drafters: DFlash (arXiv 2602.06036) and DSpark (arXiv 2607.05147). A few decoder layers fill a block of masked
// positions in one call.

#pragma once

#include "drafters/layered_network.h"

namespace forerun {

// A block is the last token (the anchor) and masks. With `sample_from_anchor` its row k predicts the token k + 1 places
// behind the anchor; without, the token k places behind it, and the anchor's own row predicts nothing.
struct BlockShape {
    int block_size;
    bool sample_from_anchor;
    int mask_token, markov_rank;
};

// Keys and values of rows with the target's states are made of those alone:
//   g = rms(fc [states]),   k, v = W_k g, W_v g in each layer
// A row of the block is a row of any decoder, from e(token) or e(mask) on, that sees these and its block. With a Markov
// head ("markov.in", "markov.out") the token before is added: logits = head rms(x) + W_2 w_1[token]; with a confidence
// head ("confidence", a row, its last number added) probabilities count sigmoid(c [rms(x); w_1[token]]) of themselves.
class BlockNetwork : public LayeredNetwork {
  public:
    BlockNetwork(Runtime& runtime, Decoder& target, const LayeredShape& layered, const BlockShape& shape);
    ~BlockNetwork() override { settle(); }

    void check() override;

  protected:
    void keep_last(int, const float*) override {}
    void begin(std::span<int> tokens) override;
    void begin_steps() override;
    void lay_out(Scratch& scratch) override;
    void begin_rows() override;
    void prepare(int sequence) override;
    void read_logits(int block, int num_tiles, int first_row, int num_rows, float* out) override;
    double confidence(int sequence) const override { return confidences_[sequence]; }
    bool sees_depth_alone() const override { return shape_.markov_rank == 0; }
    int max_depth() const override { return num_guesses(); }

  private:
    // The first row of a block that predicts a token.
    int first_row() const { return shape_.sample_from_anchor ? 0 : 1; }
    int num_guesses() const { return shape_.block_size - first_row(); }
    std::size_t logits_stride() const { return (num_ids() + kHeadBlock - 1) / kHeadBlock * kHeadBlock; }
    std::size_t guess_of(int sequence, int depth) const { return blocks_[sequence] + depth; }
    void fill(std::span<const int> sequences);

    const BlockShape shape_;
    std::unique_ptr<Head> head_;  // of all rows of blocks at once
    const Linear *markov_in_ = nullptr, *markov_out_ = nullptr;
    const float* confidence_ = nullptr;

    // The blocks of a draft: where the guesses of a sequence's begin, what the head read and said.
    static constexpr std::size_t kNoBlock = -1;
    std::size_t num_filled_ = 0;
    std::vector<std::size_t> blocks_;
    std::vector<float> states_, logits_;
    // Those that are filled: their rows before the layers and behind them.
    std::vector<float> rows_, hidden_;
    // A step.
    std::vector<int> row_sequences_;
    std::vector<double> confidences_;
    Rows markov_rows_;
};

}  // namespace forerun
