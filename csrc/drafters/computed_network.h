// Networks whose steps are computed elsewhere, as on a GPU: their logits come from there, what is made of them is the
// same.

#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "drafters/draft_network.h"

namespace forerun {

// A row of a step: the sequence, which of its steps it is, the one over the node above (-1: none), its token and depth.
struct StepRow {
    std::int32_t sequence, step, above, token, depth;
};

// Logits (rows, tokens of the head), and how much of its probabilities each row is worth, none: all.
struct ComputedRows {
    std::span<const float> logits;
    std::span<const double> confidences;
};

// Computes the rows of a step; they stay until the next one.
using ComputeRows = std::function<ComputedRows(std::span<const StepRow>)>;

// It has no weights, and reads of its target the sizes alone.
class ComputedNetwork : public DraftNetwork {
  public:
    ComputedNetwork(Runtime& runtime, Decoder& target, int max_depth, bool sees_depth_alone, ComputeRows compute)
        : DraftNetwork(runtime, target),
          max_depth_(max_depth),
          sees_depth_alone_(sees_depth_alone),
          compute_(std::move(compute)) {}
    ~ComputedNetwork() override { settle(); }

    void check() override { check_tokens(); }
    void answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) override;

  protected:
    void begin(std::span<int>) override {}
    int max_depth() const override { return max_depth_; }
    bool takes_one_step() const override { return true; }
    void lay_out(Scratch&) override {}
    void prepare(int) override {}
    void read_logits(int block, int num_tiles, int first_row, int num_rows, float* out) override;
    double confidence(int sequence) const override;
    bool sees_depth_alone() const override { return sees_depth_alone_; }

  private:
    const int max_depth_;
    const bool sees_depth_alone_;
    const ComputeRows compute_;
    ComputedRows rows_;
};

}  // namespace forerun
