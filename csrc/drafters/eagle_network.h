// EAGLE-3 (arXiv 2503.01840) with the norms of 3.1: one decoder layer behind the target, which reads
// three of its hidden states and has keys and values of its own.

#pragma once

#include "drafters/layered_network.h"

namespace forerun {

// Row t of a sequence stands for token t + 1 seen with the target's states at t:
//   g = fc [n(low); n(mid); n(high)]     n: "fc_norm.i" where it is set; "fc_norm": of all three as one
//   x = [rms(e(token)); rms(g)],   r = g + attention(x),   a = r + mlp(rms(r)),   head reads rms(a)
// A guessed row's g is the a of the row before, or the rms(a) (`feeds_back_norm`); r may start from rms(g) as well
// (`starts_from_norm`). `shape` says nothing of what q, k and v read.
class EagleNetwork : public LayeredNetwork {
  public:
    EagleNetwork(Runtime& runtime, Decoder& target, LayeredShape shape, bool feeds_back_norm, bool starts_from_norm);
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

  private:
    static constexpr int kAuxLayers = 3;

    float* g_of(int sequence);
    float* state(int sequence, int step) {
        return states_.data() + (static_cast<std::size_t>(sequence) * kMaxSteps + step) * width();
    }

    const bool feeds_back_norm_, starts_from_norm_;
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
