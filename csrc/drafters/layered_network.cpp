#include "drafters/layered_network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

// The shape of the layers as a decoder, whose heads are normed or not.
Shape decoder_shape(const LayeredShape& s, bool has_qk_norm) {
    Shape shape{.vocab_size = 1,
                .hidden_size = s.hidden_size,
                .num_layers = s.num_layers,
                .num_heads = s.num_heads,
                .max_position = s.max_len + s.num_guessed};
    shape.qk_norm = has_qk_norm ? QkNorm::Head : QkNorm::None;
    shape.attention_scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    shape.attention_width = s.attention_width;
    shape.fills_blocks = true;
    for (int i = 0; i < s.num_layers; ++i) {
        LayerShape& layer = shape.layers.emplace_back();
        layer.inner = s.intermediate_size;
        layer.kv = {s.num_kv_heads, s.head_dim, s.head_dim};
        layer.is_bidirectional = !s.bidirectional.empty() && s.bidirectional[i];
    }
    return shape;
}

}  // namespace

LayeredNetwork::LayeredNetwork(Runtime& runtime, Decoder& target, const LayeredShape& shape)
    : DraftNetwork(runtime, target),
      layered_(shape),
      lengths_(shape.num_slots),
      tokens_(shape.num_slots),
      cache_(std::vector<KvShape>(shape.num_layers, {shape.num_kv_heads, shape.head_dim}), shape.num_slots,
             shape.max_len + shape.num_guessed, KvForms{}) {
    if (shape.state_size % kTile || shape.head_dim % kTile || shape.intermediate_size % kTile)
        throw std::invalid_argument("state size, head size and MLP size must be multiples of 16");
}

// The weights of a layer: "q" of the only one, or "3.q".
Layer LayeredNetwork::layer_of(const std::string& prefix) const {
    const LayeredShape& s = layered_;
    const int q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim, inner = s.intermediate_size;
    Layer layer;
    if (s.attention_width == 0) layer.attn_norm = norm(prefix + "input_norm", width());
    layer.q = matrix(prefix + "q", q, input_width());
    layer.k = matrix(prefix + "k", kv, input_width());
    layer.v = matrix(prefix + "v", kv, input_width());
    layer.o = matrix(prefix + "o", width(), q);
    if (has(prefix + "q_norm")) {
        layer.q_norm = norm(prefix + "q_norm", s.head_dim);
        layer.k_norm = norm(prefix + "k_norm", s.head_dim);
    }
    layer.mlp_norm = norm(prefix + "mlp_norm", width());
    layer.mlp.inner = inner;
    layer.mlp.gate = matrix(prefix + "gate", inner, width());
    layer.mlp.up = matrix(prefix + "up", inner, width());
    layer.mlp.down = matrix(prefix + "down", width(), inner);
    return layer;
}

void LayeredNetwork::check() {
    fc_ = std::make_unique<Head>(runtime_, HeadShape{width(), states_width()}, matrix("fc", width(), states_width()));
    hidden_norm_ = norm("hidden_norm", width());
    std::vector<Layer> layers;
    for (int i = 0; i < layered_.num_layers; ++i)
        layers.push_back(layer_of(layered_.num_layers > 1 ? std::to_string(i) + "." : ""));
    if (2 * static_cast<int>(frequencies_.size()) != layered_.head_dim)
        throw std::invalid_argument("the frequencies of positions must be half of a head");
    const Shape shape = decoder_shape(layered_, layers[0].q_norm.weight);
    layers_ = std::make_unique<Decoder>(runtime_, shape, std::move(layers), norm("norm", width()));
    for (int i = 0; i < layered_.num_layers; ++i)
        layers_->set_attention(i, layered_.windows.empty() ? 0 : layered_.windows[i], frequencies_, 1.0f);
    check_heads(width(), 1);
}

std::size_t LayeredNetwork::nbytes() const {
    return DraftNetwork::nbytes() + sizeof(float) * kPrefillRows * (states_width() + width() + input_width());
}

void LayeredNetwork::clear(int slot) {
    const Runtime::PassLock lock(runtime_);
    cache_.check_slot(slot);
    lengths_[slot] = 0;
}

void LayeredNetwork::reuse(int slot, int source, int rows) {
    const Runtime::PassLock lock(runtime_);
    cache_.check_slot(slot);
    cache_.check_slot(source);
    if (rows < 0 || rows > lengths_[source])
        throw std::invalid_argument("the slot has not so many rows");
    const int each = cache_.blocks_per_slot();  // each slot has blocks of its own
    if (slot != source)
        for (int block = 0; block * kChunk < rows; ++block)
            cache_.copy_block(source * each + block, slot * each + block);
    lengths_[slot] = rows;
}

void LayeredNetwork::read_states(const float* states, float* out) const {
    std::copy_n(states, states_width(), out);
}

void LayeredNetwork::make_input(int, const float* g, float* out) const {
    kernels_.norm(g, hidden_norm_, width(), out);
}

void LayeredNetwork::prefill(int slot, std::span<const int> tokens, const float* states) {
    const Runtime::PassLock lock(runtime_);
    if (!layers_) throw std::invalid_argument("weights that were not checked");
    cache_.check_slot(slot);
    if (static_cast<int>(tokens.size()) > layered_.max_len - lengths_[slot])
        throw std::out_of_range("the sequence does not fit the cache");
    for (int token : tokens)
        if (token < 0 || token >= target_.shape().vocab_size)
            throw std::invalid_argument("token id " + std::to_string(token) +
                                        " is outside the vocabulary");
    const std::size_t read = states_width(), size = width(), wide = input_width();
    read_.resize(kPrefillRows * read);
    fused_.resize(kPrefillRows * size);
    made_.resize(kPrefillRows * wide);
    for (std::size_t first = 0; first < tokens.size(); first += kPrefillRows) {
        const std::size_t rows = std::min<std::size_t>(kPrefillRows, tokens.size() - first);
        for (std::size_t i = 0; i < rows; ++i) read_states(states + (first + i) * read, &read_[i * read]);
        fc_->logits_locked(read_.data(), static_cast<int>(rows), fused_.data(), size);
        for (std::size_t i = 0; i < rows; ++i) make_input(tokens[first + i], &fused_[i * size], &made_[i * wide]);
        const Segment segment{slot, lengths_[slot], 0, static_cast<int>(rows), std::vector<int>(rows), {}};
        layers_->write_kv(cache_, {&segment, 1}, made_.data());
        lengths_[slot] += static_cast<int>(rows);
        tokens_[slot] = tokens[first + rows - 1];
        keep_last(slot, &fused_[(rows - 1) * size]);
    }
}

void LayeredNetwork::begin(std::span<int> tokens) {
    slots_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int slot = seeds_[i].slot;
        cache_.check_slot(slot);
        if (lengths_[slot] == 0 || std::count(slots_.begin(), slots_.end(), slot) > 0)
            throw std::invalid_argument("a slot is empty or named twice");
        slots_.push_back(slot);
        tokens[i] = tokens_[slot];
    }
}

void LayeredNetwork::pass(std::span<const Segment> segments, const Inputs& inputs, float* hidden, float* last_layer) {
    const int last = layered_.num_layers - 1;
    layers_->pass(cache_, segments, inputs, hidden, {&last, last_layer ? 1u : 0u}, last_layer);
}

}  // namespace forerun
