// EAGLE-3 (arXiv 2503.01840) with the norms of 3.1: one decoder layer behind the target, which reads
// three of its hidden states and has keys and values of its own.

#pragma once

#include <array>

#include "model/cache.h"
#include "drafters/draft_network.h"

namespace forerun {

struct EagleShape {
    int state_size, intermediate_size, num_heads, num_kv_heads, head_dim;
    bool feeds_back_norm, starts_from_norm;  // norm_output; norm_before_residual
    int num_slots, max_len;
};

// Row t of a sequence stands for token t + 1 seen with the target's states at t:
//   g = fc [n(low); n(mid); n(high)]     n: "fc_norm.i" where it is set; "fc_norm": of all three as one
//   x = [rms(e(token)); rms(g)],   r = g + attention(x),   a = r + mlp(rms(r)),   head reads rms(a)
// A guessed row's g is the a, or the rms(a), of the row before. Rows with the target's states are
// kept; guessed ones lie behind them until the next draft.
class EagleNetwork : public DraftNetwork {
  public:
    EagleNetwork(Runtime& runtime, Decoder& target, const EagleShape& shape);
    ~EagleNetwork() override { settle(); }

    void check() override;
    void set_rope(std::span<const float> frequencies) {
        frequencies_.assign(frequencies.begin(), frequencies.end());
    }
    // A slot without rows.
    void clear(int slot);
    // A slot begins with the first `rows` rows of a slot, which may be the same.
    void reuse(int slot, int source, int rows);
    int length(int slot) const { return lengths_.at(slot); }
    // More rows of a slot: the tokens, and the target's states (rows, 3 x state size) before them.
    void feed(int slot, std::span<const int> tokens, const float* states);
    std::size_t cache_nbytes() const { return cache_.nbytes(); }
    const EagleShape& shape() const { return shape_; }

  protected:
    // Drafts below the last token that was fed of each slot, which is named once.
    void begin(std::span<int> tokens) override;
    void lay_out(Scratch& scratch) override;
    void prepare(int sequence) override;
    void plan_cell(std::vector<int>& phases) override;
    void run_cell(Worker& worker) override;

  private:
    static constexpr int kTaps = 3, kFeedRows = 64;

    void feed_rows(int slot, std::span<const int> tokens, const float* states);
    void run_feed(Worker& worker);
    void fuse(int row);
    void read_row(int row, int token, const float* g, float* residual);
    void place(int row, int slot, int cache_row, int position);
    void project_head(int head, int num_rows);
    void attend(int sequence, int kv_head, int thread);
    void norm_row(int row);
    void mlp_up(int piece);
    void finish(int sequence);
    void add_linear(const Linear& linear, const Rows& rows, int piece);
    int pieces() const { return 4 * pool_.size(); }
    int width() const { return target_.shape().hidden_size; }
    float* state(int sequence, int step) {
        return states_.data() + (static_cast<std::size_t>(sequence) * kMaxSteps + step) * width();
    }

    const EagleShape shape_;
    Cache cache_;
    std::vector<float> frequencies_;
    std::vector<int> lengths_, tokens_;  // of slots: rows, the last one's token
    std::vector<float> roots_;           // (slots, D): g of the last row

    const Linear *fc_ = nullptr, *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr,
                 *gate_ = nullptr, *up_ = nullptr, *down_ = nullptr, *embedding_ = nullptr;
    Norm fc_norms_[kTaps], fc_norm_, input_norm_, hidden_norm_, q_norm_, k_norm_, mlp_norm_, norm_;

    // The feed.
    const float* fed_states_ = nullptr;
    std::span<const int> fed_tokens_;
    int fed_slot_ = 0, num_fed_ = 0;
    // The draft: by sequence its slot, and of its steps those that guessed them.
    std::vector<int> slots_;
    std::vector<std::array<int, kMaxSteps>> steps_;
    std::vector<float> states_;  // (sequences, kMaxSteps, D)

    // Of rows: where its keys go, and its angles.
    std::vector<int> row_slots_, cache_rows_;
    std::vector<float> cos_, sin_;
    std::vector<Query> queries_;
    std::vector<std::int32_t> paths_;  // (rows, kMaxSteps)

    Rows taps_, inputs_, attended_, normed_, activated_;
    float *g_ = nullptr, *x_ = nullptr, *qkv_ = nullptr, *scratch_ = nullptr,
          *gates_ = nullptr;
    std::size_t scratch_stride_ = 0;
};

}  // namespace forerun
