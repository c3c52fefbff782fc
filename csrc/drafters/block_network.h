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
    // By layer: how many rows before the block are seen (0: all), and whether a row of it sees later ones.
    std::vector<int> windows;
    std::vector<bool> bidirectional;
};

// Keys and values of rows with the target's states are made of those alone:
//   g = rms(fc [states]),   k, v = W_k g, W_v g in each layer
// A row of the block is a row of any decoder, from e(token) or e(mask) on, that sees these and its block. With a Markov
// head ("markov.in", "markov.out") the token before is added: logits = head rms(x) + W_2 w_1[token]; with a confidence
// head ("confidence", a row, its last number added) probabilities count sigmoid(c [rms(x); w_1[token]]) of themselves.
class BlockNetwork : public LayeredNetwork {
  public:
    BlockNetwork(Runtime& runtime, Decoder& target, const LayeredShape& layered, BlockShape shape);
    ~BlockNetwork() override { settle(); }

    void check() override;

  protected:
    void run_prefill(Worker& worker) override;
    void plan_prefill(std::vector<int>& phases, int rows) override;
    void begin(std::span<int> tokens) override;
    void begin_steps() override;
    void lay_out(Scratch& scratch) override;
    void begin_rows() override;
    void prepare(int sequence) override;
    void plan_cell(std::vector<int>&) override {}
    void run_cell(Worker&) override {}
    void read_logits(int block, int num_tiles, int first_row, int num_rows, float* out) override;
    double confidence(int sequence) const override { return confidences_[sequence]; }
    bool sees_depth_alone() const override { return shape_.markov_rank == 0; }
    int max_depth() const override { return num_guesses(); }

  private:
    // The first row of a block that predicts a token.
    int first_row() const { return shape_.sample_from_anchor ? 0 : 1; }
    int num_guesses() const { return shape_.block_size - first_row(); }
    std::size_t logits_stride() const { return (num_ids() + kHeadBlock - 1) / kHeadBlock * kHeadBlock; }
    std::size_t guess_of(int sequence, int depth) const {
        return static_cast<std::size_t>(sequence) * num_guesses() + depth;
    }
    void run_block(Worker& worker);
    void begin_row(int row);
    void read_row(int layer, int row);
    void end_row(int row);
    void read_head(int block);

    const BlockShape shape_;
    const Linear *fc_ = nullptr, *markov_in_ = nullptr, *markov_out_ = nullptr;
    Norm hidden_norm_, norm_;
    const float* confidence_ = nullptr;

    // The blocks that are filled: whose, their rows, and the guesses of each.
    std::vector<int> computed_, rows_tokens_;
    int num_block_rows_ = 0, block_rows_ = 0, num_read_ = 0;
    Rows guesses_;
    // By sequence, and depth: whether there are any yet, what the head said, and what it read.
    std::vector<char> has_block_;
    std::vector<float> logits_, states_;
    // A step.
    std::vector<int> row_sequences_;
    std::vector<double> confidences_;
    Rows markov_rows_;
};

}  // namespace forerun
