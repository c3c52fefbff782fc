// Networks that draft with decoder layers of their own: what EAGLE and block drafters share. Keys and values of rows
// that have the target's states are kept, in slots; those of guessed rows lie behind them until the next draft.

#pragma once

#include <string>
#include <vector>

#include "model/cache.h"
#include "drafters/draft_network.h"

namespace forerun {

// `input_size`: what q, k and v read. `num_aux_layers` layers of the target are read, `state_size` wide.
struct LayeredShape {
    int num_layers, hidden_size, input_size, intermediate_size, num_heads, num_kv_heads, head_dim;
    int num_aux_layers, state_size;
    int num_slots, max_len, num_guessed;  // rows of a slot: prefilled ones, and behind them guesses
};

class LayeredNetwork : public DraftNetwork {
  public:
    LayeredNetwork(Runtime& runtime, Decoder& target, const LayeredShape& shape);

    void set_rope(std::span<const float> frequencies) {
        frequencies_.assign(frequencies.begin(), frequencies.end());
    }
    // A slot without rows.
    void clear(int slot);
    // A slot begins with the first `rows` rows of a slot, which may be the same.
    void reuse(int slot, int source, int rows);
    int length(int slot) const { return lengths_.at(slot); }
    // More rows of a slot: the target's aux hidden states (rows, aux layers x state size), and the tokens after them.
    void prefill(int slot, std::span<const int> tokens, const float* states);
    const LayeredShape& shape() const { return layered_; }

  protected:
    struct Layer {
        const Linear *q, *k, *v, *o, *gate, *up, *down;
        Norm input_norm, q_norm, k_norm, mlp_norm;
    };
    // Rows that attend together: of one slot, one after the other.
    struct Unit {
        int first, count;
    };
    static constexpr int kPrefillRows = 64;

    // Finds the weights of layers, "q" of the only one or "3.q", and checks the rope.
    void check_layers();
    // Adds keys and values of `num_prefill_` rows to a slot, at most kPrefillRows; `aux_` is laid out, and filled.
    virtual void run_prefill(Worker& worker) = 0;
    virtual void plan_prefill(std::vector<int>& phases, int rows) = 0;
    virtual void lay_out_prefill(Scratch&, int) {}
    virtual void end_prefill(int) {}

    // Names the slots of a draft, once each, and their last tokens.
    void begin_slots(std::span<int> tokens);
    void lay_out_rows(Scratch& scratch, int rows);
    void resize_rows(int rows);
    // Says where a row's keys go, and its angles.
    void place(int row, int slot, int cache_row, int position);
    // A row of `inputs_` is complete.
    void quantize_inputs(int layer, int row);

    // The phases of a layer over rows of `x_`, whose inputs are complete; `finish(row)` when x_ is.
    void plan_layer(std::vector<int>& phases, int rows, int units) const;
    template <class Finish>
    void run_layer(Worker& worker, int layer, const int& rows, Finish finish) {
        worker.each([&, layer](int head) { project(layer, head, num_placed_); });
        worker.each_and_rows(
            [&, layer](int i) {
                attend(layer, i / layered_.num_kv_heads, i % layered_.num_kv_heads, worker.thread);
            },
            rows, [&, layer](int row) { quantize_row(*layers_[layer].o, attended_, row); });
        worker.each_and_rows([&, layer](int piece) { add_linear(*layers_[layer].o, attended_, piece); }, rows,
                             [&, layer](int row) { norm_row(layer, row); });
        worker.each([&, layer](int piece) { mlp_up(layer, piece); });
        worker.each_and_rows([&, layer](int piece) { add_linear(*layers_[layer].down, activated_, piece); }, rows,
                             finish);
    }
    // One head of q, k or v, in this order, of the first `rows` rows.
    void project(int layer, int head, int rows);

    int width() const { return layered_.hidden_size; }
    int pieces() const { return 4 * pool_.size(); }
    int num_heads() const { return layered_.num_heads + 2 * layered_.num_kv_heads; }
    float* x_of(int row) { return x_ + static_cast<std::size_t>(row) * width(); }

    const LayeredShape layered_;
    Cache cache_;
    std::vector<Layer> layers_;
    std::vector<int> lengths_, tokens_;  // of slots: rows, the token after the last one
    std::vector<int> slots_;             // by sequence of a draft

    // The prefill that is running.
    const float* prefill_states_ = nullptr;
    std::span<const int> prefill_tokens_;
    int prefill_slot_ = 0, num_prefill_ = 0;
    Rows aux_;

    int num_placed_ = 0;  // rows of the layer that is running
    std::vector<Unit> units_;
    std::vector<Query> queries_;  // (layers, rows)
    Rows inputs_, attended_, normed_, activated_;
    float *x_ = nullptr, *qkv_ = nullptr;

  private:
    void attend(int layer, int unit, int kv_head, int thread);
    void quantize_row(const Linear& reader, const Rows& rows, int row);
    void norm_row(int layer, int row);
    void mlp_up(int layer, int piece);
    void add_linear(const Linear& linear, const Rows& rows, int piece);

    std::vector<float> frequencies_, cos_, sin_;
    std::vector<int> row_slots_, cache_rows_;
    float *gates_ = nullptr, *scratch_ = nullptr;
    std::size_t scratch_stride_ = 0;
};

}  // namespace forerun
