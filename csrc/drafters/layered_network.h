// Networks that draft with decoder layers of their own: what EAGLE and block drafters share. Keys and values of rows
// that have the target's states are kept, in slots; those of guessed rows lie behind them until the next draft.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "drafters/draft_network.h"
#include "model/cache.h"
#include "model/head.h"

namespace forerun {

// `attention_width`: what q, k and v read, 0: normed states. `num_aux_layers` layers of the target are read,
// `state_size` wide.
struct LayeredShape {
    int num_layers, hidden_size, attention_width, intermediate_size, num_heads, num_kv_heads, head_dim;
    int num_aux_layers, state_size;
    int num_slots, max_len, num_guessed;  // rows of a slot: prefilled ones, and behind them guesses
    // Of blocks, by layer: how many rows before one are seen (0: all), and whether a row of it sees later ones.
    std::vector<int> windows = {};
    std::vector<bool> bidirectional = {};
};

// Row t of a slot stands for the token behind the target's states at t. These are fused, g = fc [states], and what
// `make_input` makes of g is what k and v of all layers read.
class LayeredNetwork : public DraftNetwork {
  public:
    LayeredNetwork(Runtime& runtime, Decoder& target, const LayeredShape& shape);

    void check() override;
    void set_rope(std::span<const float> frequencies) {
        frequencies_.assign(frequencies.begin(), frequencies.end());
    }
    // A slot without rows.
    void clear(int slot);
    // A slot begins with the first `rows` rows of a slot, which may be the same.
    void reuse(int slot, int source, int rows);
    // More rows of a slot: the target's aux hidden states (rows, aux layers x state size), and the tokens after them.
    void prefill(int slot, std::span<const int> tokens, const float* states);
    const LayeredShape& shape() const { return layered_; }
    // Its weights, and the rows of a prefill.
    std::size_t nbytes() const override;

  protected:
    // What `fc` reads of a row's states, both (aux layers x state size).
    virtual void read_states(const float* states, float* out) const;
    // What q, k and v read of a token and its g.
    virtual void make_input(int token, const float* g, float* out) const;
    // The g of the last row that a slot was prefilled with.
    virtual void keep_last(int slot, const float* g) = 0;

    // Names the slots of a draft, once each, and their last tokens.
    void begin(std::span<int> tokens) override;
    // Computes guessed rows: their states (R, D), normed as the head reads them, and as the last layer leaves them.
    void pass(std::span<const Segment> segments, const Inputs& inputs, float* hidden, float* last_layer = nullptr);

    int width() const { return layered_.hidden_size; }
    int states_width() const { return layered_.num_aux_layers * layered_.state_size; }
    int input_width() const { return layered_.attention_width > 0 ? layered_.attention_width : width(); }

    const LayeredShape layered_;
    std::vector<int> lengths_, tokens_;  // of slots: rows, the token after the last one
    std::vector<int> slots_;             // by sequence of a draft
    Norm hidden_norm_;

  private:
    static constexpr int kPrefillRows = 64;

    Layer layer_of(const std::string& prefix) const;

    Cache cache_;
    std::unique_ptr<Decoder> layers_;
    std::unique_ptr<Head> fc_;
    std::vector<float> frequencies_;
    std::vector<float> read_, fused_, made_;  // of the prefill that is running: what `fc` reads, g, what k and v read
};

}  // namespace forerun
