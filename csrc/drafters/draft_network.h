// Networks that guess what a decoder says next: small, beside it on its threads, with its embedding
// and rows of its head.
//
// A draft is one call: the network takes a token at a time (a step), its head says what may follow, and the
// trees grow as `growth.h` says. A step's numbers do not depend on the other sequences, on threads or on the
// instruction set.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "drafters/growth.h"
#include "model/model.h"

namespace forerun {

inline constexpr int kHeadBlock = kHeadTiles * kTile;  // logits that a piece of a head's phase computes
inline constexpr int kLists = 2;  // of kNext: the likeliest, and the largest scores with the sampler's noise

// What a network begins with, of each sequence of a draft.
struct Seed {
    int slot = 0;                  // in its own cache
    const float* state = nullptr;  // (D,) that the target's head read before the last token
};

class DraftNetwork : public Partner {
  public:
    DraftNetwork(Runtime& runtime, Decoder& target);
    ~DraftNetwork() override = default;
    DraftNetwork(const DraftNetwork&) = delete;
    DraftNetwork& operator=(const DraftNetwork&) = delete;

    // Weights by name; `check` says whether they are what the network needs.
    void set(const std::string& name, Packed packed);
    void set_norm(const std::string& name, std::span<const float> weight,
                  std::span<const float> bias, float eps);
    // The tokens that heads have rows for, ascending; none: all. `take_head`: the rows of the
    // target's head for them.
    void set_tokens(const std::vector<std::int64_t>& ids);
    void take_head();
    // By depth, the last for all below: logits are divided by it before they become probabilities.
    void set_temperatures(std::vector<float> temperatures);
    // Throws std::invalid_argument naming a weight that is missing or has another shape.
    virtual void check() = 0;

    // Begins a draft of some sequences: a seed of each, and their last tokens, which a network may know
    // better. Says how the network is asked.
    PartnerRule begin_draft(std::vector<Seed> seeds, std::span<int> tokens);
    // Steps until no tree waits for the network.
    void answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) override;

    // A weight that was set, null if it was not; a norm's `linear` has no format.
    const Packed* find(const std::string& name) const;
    virtual std::size_t nbytes() const;
    const Decoder& target() const { return target_; }
    int num_threads() const { return pool_.size(); }
    const Kernels& kernels() const { return kernels_; }

  protected:
    const Linear& matrix(const std::string& name, int num_out, int num_in) const;
    Norm norm(const std::string& name, int width) const;
    bool has(const std::string& name) const { return find(name) != nullptr; }
    void check_tokens();
    void check_heads(int width, int num_heads);
    void settle();  // what every destructor does first

    // What a draft needs before its first step: weights that were checked, a state of the target or a slot a sequence.
    virtual void begin(std::span<int> tokens) = 0;
    void check_states() const;
    virtual int max_depth() const { return kMaxSteps; }
    // Whether each step is an answer of its own, begun by `begin_steps`.
    virtual bool takes_one_step() const { return false; }
    // What comes before the first step of those sequences that wait for the network, in one go.
    virtual void begin_steps() {}
    // What comes before each step, once its rows are known.
    virtual void begin_rows() {}
    // A step of the network is the phases of `run_cell`, which leave the rows that the head reads in `head_rows_`.
    // Between steps other passes may run: nothing that is laid out stays.
    virtual void lay_out(Scratch& scratch) = 0;
    // Before them each sequence that takes part is prepared.
    virtual void prepare(int sequence) = 0;
    virtual void plan_cell(std::vector<int>&) {}
    virtual void run_cell(Worker&) {}
    // Logits of some rows (each kBlock): of the head's tiles from those of `block` on.
    virtual void read_logits(int block, int num_tiles, int first_row, int num_rows, float* out);
    // How much of its probabilities a sequence's step is worth.
    virtual double confidence(int) const { return 1.0; }
    // Whether a depth's next tokens are the same after all tokens: one step a depth is enough.
    virtual bool sees_depth_alone() const { return false; }

    const std::vector<std::int64_t>& ids() const { return ids_; }
    int num_sequences() const { return num_sequences_; }
    const GrowingTree& draft(int sequence) const { return (*trees_)[sequence]; }
    bool is_active(int sequence) const { return draft(sequence).waits_for == self_; }
    // A sequence's steps so far, and the one over the node above; its first steps come together.
    int step_of(int sequence) const { return draft(sequence).num_taken(self_); }
    int step_above(int sequence) const { return draft(sequence).step_above(self_); }
    int most_steps(int sequence) const { return draft(sequence).request.num_steps[self_]; }
    bool is_first() const { return is_first_; }
    // The rows of this step: the sequences that take part, in order.
    int num_rows() const;
    // A row (width of the head) that the head reads.
    void give_head(int row, const float* x);
    const Linear& head(int depth) const;
    // Where those rows from `first` on end that one call of `linear` may read: of the same weights, by depth.
    template <class WeightsOf>
    int end_of_rows(int first, int limit, const WeightsOf& weights_of) const {
        const Linear* weights = weights_of(row_depths_[first]);
        int stop = first + 1;
        while (stop < limit && lie_together(first, stop + 1 - first) && weights_of(row_depths_[stop]) == weights)
            ++stop;
        return stop;
    }
    int num_ids() const { return num_ids_; }

    Runtime& runtime_;
    Decoder& target_;
    const Kernels& kernels_;
    Pool& pool_;
    std::vector<Seed> seeds_;
    int num_sequences_ = 0;
    std::vector<int> row_depths_;
    std::vector<const TreeNoise*> row_noises_;
    Rows head_rows_;

  private:
    void run(Worker& worker);
    void begin_step();
    void read_head(int piece, int thread);
    void learn_next(int sequence);
    Probabilities next_tokens(int sequence) const;
    Scored* lists(int thread, int row) const;
    float log_sum(int row) const;
    std::map<std::string, Packed> weights_;
    std::map<std::string, float> eps_;
    std::vector<std::int64_t> ids_;
    std::vector<std::int32_t> noise_ids_;  // the same, a tile longer
    std::vector<float> factors_{1.0f};  // of logits, by depth
    std::vector<const Linear*> heads_;
    std::vector<GrowingTree>* trees_ = nullptr;
    const GrowthLimits* limits_ = nullptr;
    int self_ = 0;
    bool is_first_ = true;
    int num_ids_ = 0;

    float* aside_ = nullptr;      // (threads, kHeadRows, tiles of a block)
    Scored* largest_ = nullptr;   // (threads, rows, kLists, kNext)
    float *block_largest_ = nullptr, *block_sum_ = nullptr;  // (rows, block_stride_)
    int num_blocks_ = 0, block_stride_ = 0;
};

// `num_predict` decides on the weight of embeddings; a node may be as deep as `max_depth`.
struct RecurrentShape {
    int inner_size, num_predict, max_depth;
    bool is_lstm, scales_input;
};

// What embeddings are multiplied by: `a` below.
float token_weight(int inner_size, int num_predict);

// IBM's MLP speculator (arXiv 2404.19124) and its LSTM cell: the state after a token is made of the
// state before it and the token's embedding.
//   mlp:  s = gelu(ln(P s + a e)),  a = sqrt((1 - w^2) inner / 2) / w,  w = 0.5^(0.5 / num_predict)
//   lstm: f, i, o, g = P s + a e,  c = sig(f) c + sig(i) gelu(ln(g)),  s = sig(o) gelu(ln(c))
class RecurrentNetwork : public DraftNetwork {
  public:
    RecurrentNetwork(Runtime& runtime, Decoder& target, const RecurrentShape& shape);
    ~RecurrentNetwork() override { settle(); }

    void check() override;
    // Keeps what becomes of the embeddings of the head's tokens, in 8 bits: most tokens that a step takes are among
    // them.
    void keep_mapped();
    std::size_t nbytes() const override;

  protected:
    void begin(std::span<int> tokens) override;
    int max_depth() const override { return shape_.max_depth; }
    void lay_out(Scratch& scratch) override;
    void prepare(int sequence) override;
    void plan_cell(std::vector<int>& phases) override;
    void run_cell(Worker& worker) override;

  private:
    // The weights of a depth.
    struct Cell {
        const Linear *projection, *embedding;  // the embedding null: the target's
        Norm norm;
    };

    const Cell& cell(int depth) const { return cells_[depth < num_cells() ? depth : num_cells() - 1]; }
    int num_cells() const { return static_cast<int>(cells_.size()); }
    int num_gates() const { return shape_.is_lstm ? 4 : 1; }
    float* state(int sequence, int step);
    void project(int piece, const Rows& rows);
    void finish(int sequence);
    void embed(const Cell& cell, int token, float* out);
    std::ptrdiff_t mapped_row(int token) const;
    bool recall(int token, float* out) const;
    void remember(int sequence, float* e);

    const RecurrentShape shape_;
    const float emb_weight_;
    std::vector<Cell> cells_;
    const Linear* map_ = nullptr;  // of the target's embedding, or null
    int emb_size_ = 0;             // of e: a gate's, the same for all, or that of all gates
    Norm input_norm_, state_norm_;
    std::vector<float> input_scale_;
    std::vector<std::int64_t> mapped_ids_;
    Buffer mapped_;                     // (their number, emb_size_), touched as tokens are needed
    std::vector<float> mapped_scales_;  // kNotMapped: not needed yet
    static constexpr float kNotMapped = -1.0f;
    std::vector<char> is_mapped_;  // by row of a step

    Rows first_rows_, rows_, map_rows_;
    float *gates_ = nullptr, *embedded_ = nullptr;
    std::vector<float> states_;  // (sequences, kMaxSteps, 2, inner size)
};

// Medusa (arXiv 2401.10774): head k guesses the token 1 + k after the next one from the target's state alone,
// x + silu(W x + b) for each of its blocks.
class MedusaNetwork : public DraftNetwork {
  public:
    MedusaNetwork(Runtime& runtime, Decoder& target, int num_heads, int num_layers)
        : DraftNetwork(runtime, target), num_heads_(num_heads), num_layers_(num_layers) {}
    ~MedusaNetwork() override { settle(); }

    // Weights: "block.k.j" and "bias.k.j" of block j of head k, "head.k" or one "head.0".
    void check() override;

  protected:
    void begin(std::span<int> tokens) override;
    int max_depth() const override { return num_heads_; }
    void lay_out(Scratch& scratch) override;
    void prepare(int sequence) override;
    void plan_cell(std::vector<int>& phases) override;
    void run_cell(Worker& worker) override;
    bool sees_depth_alone() const override { return true; }

  private:
    struct Block {
        const Linear* linear;
        const float* bias;
    };

    const Block& block(int row, int layer) const {
        return blocks_[row_depths_[row] * num_layers_ + layer];
    }
    void project(int piece, int layer);
    void finish(int sequence, int layer);

    const int num_heads_, num_layers_;
    std::vector<Block> blocks_;
    Rows rows_;
    float* out_ = nullptr;
};

}  // namespace forerun
