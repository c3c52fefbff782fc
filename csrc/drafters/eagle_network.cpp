#include "drafters/eagle_network.h"

#include <algorithm>

namespace forerun {

EagleNetwork::EagleNetwork(Runtime& runtime, Decoder& target, const EagleShape& shape)
    : LayeredNetwork(runtime, target,
                     {.num_layers = 1,
                      .hidden_size = shape.hidden_size,
                      .input_size = 2 * shape.hidden_size,
                      .intermediate_size = shape.intermediate_size,
                      .num_heads = shape.num_heads,
                      .num_kv_heads = shape.num_kv_heads,
                      .head_dim = shape.head_dim,
                      .num_aux_layers = kAuxLayers,
                      .state_size = shape.state_size,
                      .num_slots = shape.num_slots,
                      .max_len = shape.max_len,
                      .num_guessed = kMaxSteps}),
      shape_(shape),
      roots_(static_cast<std::size_t>(shape.num_slots) * shape.hidden_size) {}

void EagleNetwork::check() {
    fc_ = &matrix("fc", width(), kAuxLayers * shape_.state_size);
    for (int i = 0; i < kAuxLayers; ++i) {
        const std::string name = "fc_norm." + std::to_string(i);
        fc_norms_[i] = has("fc_norm.0") ? norm(name, shape_.state_size) : Norm{};
    }
    fc_norm_ = has("fc_norm") ? norm("fc_norm", kAuxLayers * shape_.state_size) : Norm{};
    hidden_norm_ = norm("hidden_norm", width());
    check_layers();
    norm_ = norm("norm", width());
    embedding_ = has("emb.0") ? &matrix("emb.0", target_.shape().vocab_size, width()) : nullptr;
    if (!embedding_ && width() != target_.shape().hidden_size)
        throw std::invalid_argument("a network of another width than its target needs embeddings of its own");
    check_heads(width(), 1);
}

void EagleNetwork::lay_out_prefill(Scratch& scratch, int rows) {
    g_ = scratch.take<float>(static_cast<std::size_t>(rows) * width());
}

void EagleNetwork::plan_prefill(std::vector<int>& phases, int rows) {
    phases = {rows, pieces(), row_pieces(rows), 2 * shape_.num_kv_heads};
}

void EagleNetwork::run_prefill(Worker& worker) {
    worker.each([&](int row) { fuse(row); });
    const auto fuse_part = [&](int piece) {
        const Part part(fc_->num_tiles(), piece, pieces());
        kernels_.linear(*fc_, part.first, part.stop - part.first, aux_, 0, num_prefill_,
                        {g_ + part.first * kTile, static_cast<std::size_t>(width())});
    };
    worker.each_and_rows(fuse_part, num_prefill_, [&](int row) {
        read_row(row, prefill_tokens_[row], g_ + static_cast<std::size_t>(row) * width(), nullptr);
    });
    worker.each([&](int head) { project(0, shape_.num_heads + head, num_prefill_); });
}

void EagleNetwork::end_prefill(int rows) {
    std::copy_n(g_ + static_cast<std::size_t>(rows - 1) * width(), width(),
                roots_.data() + static_cast<std::size_t>(prefill_slot_) * width());
}

// What `fc` reads.
void EagleNetwork::fuse(int row) {
    const int size = shape_.state_size, all = kAuxLayers * size;
    const float* from = prefill_states_ + static_cast<std::size_t>(row) * all;
    float* x = aux_.x + static_cast<std::size_t>(row) * all;
    for (int i = 0; i < kAuxLayers; ++i)
        if (fc_norms_[i].weight)
            kernels_.norm(from + i * size, fc_norms_[i], size, x + i * size);
        else
            std::copy_n(from + i * size, size, x + i * size);
    if (fc_norm_.weight) kernels_.norm(x, fc_norm_, all, x);
    if (!fc_->is_float()) kernels_.quantize(x, aux_, row, 0, all);
}

// What q, k and v read, and where the residual starts.
void EagleNetwork::read_row(int row, int token, const float* g, float* residual) {
    float* x = inputs_.x + static_cast<std::size_t>(row) * inputs_.width;
    if (embedding_)
        unpack_row(*embedding_, token, x);
    else
        target_.embed_row(token, x);
    kernels_.norm(x, layers_[0].input_norm, width(), x);
    kernels_.norm(g, hidden_norm_, width(), x + width());
    quantize_inputs(0, row);
    if (residual) std::copy_n(shape_.starts_from_norm ? x + width() : g, width(), residual);
}

void EagleNetwork::begin(std::span<int> tokens) {
    begin_slots(tokens);
    const int rows = num_sequences();
    resize_rows(rows);
    steps_.assign(rows, {});
    paths_.assign(static_cast<std::size_t>(rows) * kMaxSteps, 0);
    states_.resize(static_cast<std::size_t>(rows) * kMaxSteps * width());
}

void EagleNetwork::lay_out(Scratch& scratch) {
    lay_out_rows(scratch, num_sequences());
    head_rows_ = scratch.take_rows(num_sequences(), width());
}

void EagleNetwork::begin_rows() {
    num_placed_ = num_rows();
    units_.clear();
    for (int row = 0; row < num_placed_; ++row) units_.push_back({row, 1});
}

// A row: the last prefilled one at first, then guessed ones. Guesses lie behind the prefilled rows, by
// step; a row sees those on its path.
void EagleNetwork::prepare(int sequence) {
    const GrowingTree& tree = draft(sequence);
    const int row = tree.row, slot = slots_[sequence], base = lengths_[slot], step = step_of(sequence);
    const float* g = step == 0 ? roots_.data() + static_cast<std::size_t>(slot) * width()
                               : state(sequence, step_above(sequence));
    read_row(row, tree.token, g, x_of(row));
    const int position = base - 1 + tree.depth;
    place(row, slot, base - 1 + step, position);
    std::int32_t* path = paths_.data() + static_cast<std::size_t>(row) * kMaxSteps;
    steps_[sequence][step] = step_above(sequence);
    for (int at = step, depth = tree.depth; depth > 0; at = steps_[sequence][at], --depth)
        path[depth - 1] = base - 1 + at;
    queries_[row] = {row, position, 0, base, path};
}

void EagleNetwork::finish(int sequence) {
    const GrowingTree& tree = draft(sequence);
    if (!is_active(sequence)) return;
    const float* a = x_of(tree.row);
    float* out = normed_.x + static_cast<std::size_t>(tree.row) * width();
    kernels_.norm(a, norm_, width(), out);
    give_head(tree.row, out);
    std::copy_n(shape_.feeds_back_norm ? out : a, width(), state(sequence, step_of(sequence)));
}

}  // namespace forerun
