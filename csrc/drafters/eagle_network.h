// EAGLE-3 (arXiv 2503.01840) with the norms of 3.1: one decoder layer behind the target, which reads
// three of its hidden states and has keys and values of its own.

#pragma once

#include "drafters/layered_network.h"

namespace forerun {

struct EagleShape {
    int hidden_size, state_size, intermediate_size, num_heads, num_kv_heads, head_dim;
    bool feeds_back_norm, starts_from_norm;  // norm_output; norm_before_residual
    int num_slots, max_len;
};

// Row t of a sequence stands for token t + 1 seen with the target's states at t:
//   g = fc [n(low); n(mid); n(high)]     n: "fc_norm.i" where it is set; "fc_norm": of all three as one
//   x = [rms(e(token)); rms(g)],   r = g + attention(x),   a = r + mlp(rms(r)),   head reads rms(a)
// A guessed row's g is the a, or the rms(a), of the row before.
class EagleNetwork : public LayeredNetwork {
  public:
    EagleNetwork(Runtime& runtime, Decoder& target, const EagleShape& shape);
    ~EagleNetwork() override { settle(); }

    void check() override;

  protected:
    void read_states(const float* states, float* out) const override;
    void make_input(int token, const float* g, float* out) const override;
    void keep_last(int slot, const float* g) override;
    // Drafts below the last prefilled token of each slot, which is named once.
    void begin(std::span<int> tokens) override;
    void begin_steps() override;
    bool takes_one_step() const override { return true; }
    void lay_out(Scratch& scratch) override { head_rows_ = scratch.take_rows(num_sequences(), width()); }
    void prepare(int sequence) override;
    void plan_cell(std::vector<int>&) override {}
    void run_cell(Worker&) override {}

  private:
    static constexpr int kAuxLayers = 3;

    float* g_of(int sequence);
    float* state(int sequence, int step) {
        return states_.data() + (static_cast<std::size_t>(sequence) * kMaxSteps + step) * width();
    }

    const EagleShape shape_;
    std::vector<float> roots_;  // (slots, D): g of the last row

    const Linear* embedding_ = nullptr;
    Norm fc_norms_[kAuxLayers], fc_norm_, input_norm_;

    // The draft: of a sequence's steps those that guessed them, and the g of what follows.
    std::vector<std::vector<int>> steps_;
    std::vector<float> states_;  // (sequences, kMaxSteps, D)
    // The rows of a step.
    std::vector<Segment> segments_;
    std::vector<float> residuals_, inputs_, outputs_, normed_;
};

}  // namespace forerun
