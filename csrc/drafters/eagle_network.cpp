#include "drafters/eagle_network.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace forerun {

namespace {

LayeredShape with_both_halves(LayeredShape shape) {
    shape.attention_width = 2 * shape.hidden_size;
    return shape;
}

}  // namespace

EagleNetwork::EagleNetwork(Runtime& runtime, Decoder& target, LayeredShape shape, bool feeds_back_norm,
                           bool starts_from_norm)
    : LayeredNetwork(runtime, target, with_both_halves(std::move(shape))),
      feeds_back_norm_(feeds_back_norm),
      starts_from_norm_(starts_from_norm),
      roots_(static_cast<std::size_t>(layered_.num_slots) * layered_.hidden_size) {
    if (layered_.num_aux_layers != kAuxLayers) throw std::invalid_argument("three layers of the target must be read");
}

void EagleNetwork::check() {
    LayeredNetwork::check();
    for (int i = 0; i < kAuxLayers; ++i) {
        const std::string name = "fc_norm." + std::to_string(i);
        fc_norms_[i] = has("fc_norm.0") ? norm(name, layered_.state_size) : Norm{};
    }
    fc_norm_ = has("fc_norm") ? norm("fc_norm", kAuxLayers * layered_.state_size) : Norm{};
    input_norm_ = norm("input_norm", width());
    embedding_ = has("emb.0") ? &matrix("emb.0", target_.shape().vocab_size, width()) : nullptr;
    if (!embedding_ && width() != target_.shape().hidden_size)
        throw std::invalid_argument("a network of another width than its target needs embeddings of its own");
}

void EagleNetwork::read_states(const float* states, float* out) const {
    const int size = layered_.state_size;
    LayeredNetwork::read_states(states, out);
    for (int i = 0; i < kAuxLayers && fc_norms_[i].weight; ++i)
        kernels_.norm(out + i * size, fc_norms_[i], size, out + i * size);
    if (fc_norm_.weight) kernels_.norm(out, fc_norm_, kAuxLayers * size, out);
}

void EagleNetwork::make_input(int token, const float* g, float* out) const {
    if (embedding_)
        unpack_row(*embedding_, token, out);
    else
        target_.embed_row(token, out);
    kernels_.norm(out, input_norm_, width(), out);
    LayeredNetwork::make_input(token, g, out + width());
}

void EagleNetwork::keep_last(int slot, const float* g) {
    std::copy_n(g, width(), roots_.data() + static_cast<std::size_t>(slot) * width());
}

void EagleNetwork::begin(std::span<int> tokens) {
    LayeredNetwork::begin(tokens);
    const std::size_t rows = num_sequences(), size = width();
    steps_.assign(rows, {});
    states_.resize(rows * kMaxSteps * size);
    residuals_.resize(rows * size);
    inputs_.resize(rows * input_width());
    outputs_.resize(rows * size);
    normed_.resize(rows * size);
}

// The g of the row that a sequence's step computes.
float* EagleNetwork::g_of(int sequence) {
    if (step_of(sequence) > 0) return state(sequence, step_above(sequence));
    return roots_.data() + static_cast<std::size_t>(slots_[sequence]) * width();
}

// A row of each sequence that takes part: the last prefilled one at first, then guessed ones, which lie behind the
// prefilled rows by step and see those on their path.
void EagleNetwork::begin_steps() {
    const std::size_t size = width();
    segments_.clear();
    std::size_t row = 0;
    for (int i = 0; i < num_sequences(); ++i) {
        if (!is_active(i)) continue;
        const int step = step_of(i), base = lengths_[slots_[i]] - 1;
        const float* g = g_of(i);
        float *residual = &residuals_[row * size], *input = &inputs_[row * input_width()];
        make_input(draft(i).token, g, input);
        std::copy_n(starts_from_norm_ ? input + size : g, size, residual);
        steps_[i].push_back(step_above(i));
        segments_.push_back({slots_[i], base, step, step + 1, std::vector<int>(step + 1), steps_[i]});
        ++row;
    }
    pass(segments_, {residuals_.data(), inputs_.data()}, normed_.data(), outputs_.data());
}

void EagleNetwork::prepare(int sequence) {
    const std::size_t first = static_cast<std::size_t>(draft(sequence).row) * width();
    give_head(draft(sequence).row, &normed_[first]);
    std::copy_n(&(feeds_back_norm_ ? normed_ : outputs_)[first], width(), state(sequence, step_of(sequence)));
}

}  // namespace forerun
