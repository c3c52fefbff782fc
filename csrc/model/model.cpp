// The decoder's weights, by name. plan.cpp lays out a pass, step.cpp computes it, head.cpp reads
// its result.

#include "model/model.h"

#include <algorithm>
#include <stdexcept>

namespace forerun {

Decoder::Decoder(Runtime& runtime, const Shape& shape)
    : shape_(shape),
      runtime_(runtime),
      kernels_(runtime.kernels),
      pool_(runtime.pool),
      layers_(static_cast<std::size_t>(shape.num_layers)) {
    if (shape.hidden_size % kTile || shape.head_dim % kTile || shape.intermediate_size % kTile)
        throw std::invalid_argument("hidden size, head size and MLP size must be multiples of 16");
    if (shape.num_heads % shape.num_kv_heads)
        throw std::invalid_argument("heads must be a multiple of kv heads");
    name_weights();
}

Decoder::~Decoder() {
    const std::scoped_lock lock(runtime_.busy);
    pool_.settle();
}

// The table of weights: every name, its shape, and where it goes.
void Decoder::name_weights() {
    const Shape& s = shape_;
    const int width = s.hidden_size, inner = s.intermediate_size, q = s.num_heads * s.head_dim,
              kv = s.num_kv_heads * s.head_dim;
    std::string prefix;
    const auto matrix = [&](const char* name, Linear& to, int num_out, int num_in,
                            bool is_optional = false) {
        weights_[prefix + name] = {num_out, num_in, is_optional, &to, nullptr, {}};
    };
    const auto norm = [&](const char* name, Norm& to, int size, bool is_optional = false) {
        weights_[prefix + name] = {1, size, is_optional, nullptr, &to, {}};
    };
    matrix("embed", embed_, s.vocab_size, width);
    matrix("head", head_, s.vocab_size, width, true);  // else the embedding's
    if (s.position_offset >= 0) matrix("positions", positions_, 0, width);
    norm("norm", final_norm_, width);
    for (int i = 0; i < s.num_layers; ++i) {
        Layer& layer = layers_[i];
        prefix = "layers." + std::to_string(i) + ".";
        norm("attn_norm", layer.attn_norm, width);
        matrix("q", layer.q, q, width);
        matrix("k", layer.k, kv, width);
        matrix("v", layer.v, kv, width);
        norm("q_norm", layer.q_norm, s.head_dim, true);
        norm("k_norm", layer.k_norm, s.head_dim, true);
        matrix("o", layer.o, width, q);
        norm("mlp_norm", layer.mlp_norm, width);
        if (s.is_gated) matrix("gate", layer.gate, inner, width);
        matrix("up", layer.up, inner, width);
        matrix("down", layer.down, width, inner);
    }
}

Weight& Decoder::find(const std::string& name) {
    const auto found = weights_.find(name);
    if (found == weights_.end()) throw std::invalid_argument("no weight is called " + name);
    return found->second;
}

void Decoder::set(const std::string& name, Packed packed) {
    Weight& weight = find(name);
    const Linear& given = packed.linear;
    const int num_out = weight.num_out ? weight.num_out : given.num_out;
    if (!weight.linear) throw std::invalid_argument(name + " is a norm");
    if (given.num_out != num_out || given.num_read() != weight.num_in)
        throw std::invalid_argument(
            name + " is (" + std::to_string(given.num_out) + ", " + std::to_string(given.num_read()) +
            "), expected (" + std::to_string(num_out) + ", " + std::to_string(weight.num_in) + ")");
    if (given.flat && !name.starts_with("layers."))
        throw std::invalid_argument(name + " cannot read flattened rows");
    const std::scoped_lock lock(runtime_.busy);
    *weight.linear = given;
    weight.packed = std::move(packed);
}

void Decoder::set_norm(const std::string& name, std::span<const float> values,
                       std::span<const float> bias) {
    Weight& weight = find(name);
    const std::size_t width = static_cast<std::size_t>(weight.num_in);
    if (!weight.norm) throw std::invalid_argument(name + " is no norm");
    if (values.size() != width || (!bias.empty() && bias.size() != width))
        throw std::invalid_argument(name + " must have " + std::to_string(width) + " values");
    const auto copy = [](std::span<const float> from) {
        Buffer buffer = weight_memory(from.size_bytes());
        std::copy(from.begin(), from.end(), buffer.as<float>());
        return buffer;
    };
    const std::scoped_lock lock(runtime_.busy);
    weight.packed = {{}, copy(values), copy(bias)};
    *weight.norm = {weight.packed.memory.as<float>(), weight.packed.bias.as<float>(),
                    shape_.norm_eps, shape_.is_layer_norm};
}

void Decoder::set_rope(std::span<const float> frequencies, float factor) {
    if (2 * frequencies.size() > static_cast<std::size_t>(shape_.head_dim))
        throw std::invalid_argument("more rotated pairs than a head has");
    frequencies_.assign(frequencies.begin(), frequencies.end());
    rope_factor_ = factor;
}

void Decoder::check() {
    for (const auto& [name, weight] : weights_)
        if (!weight.is_optional && weight.packed.nbytes() == 0)
            throw std::invalid_argument("weight " + name + " is missing");
    check_flat();
    is_checked_ = true;
}

// Layers that read the same rows must flatten them alike.
void Decoder::check_flat() const {
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        const bool is_alike = flattens_alike(layer.q, layer.k) && flattens_alike(layer.q, layer.v) &&
                              (!shape_.is_gated || flattens_alike(layer.gate, layer.up));
        if (!is_alike)
            throw std::invalid_argument("matrices of layer " + std::to_string(i) +
                                        " that read the same inputs flatten them differently");
    }
}

std::unique_ptr<Decoder> Decoder::head_part(std::span<const std::int64_t> ids) {
    if (!is_checked_) check();
    Shape shape = shape_;
    shape.vocab_size = static_cast<int>(ids.size());
    shape.num_layers = 0;
    shape.position_offset = -1;
    auto part = std::make_unique<Decoder>(runtime_, shape);
    part->set("embed", gather_rows(head_weights(), ids));
    part->is_checked_ = true;  // it has no norm, and no pass needs one
    return part;
}

void Decoder::check_id(std::int64_t id) const {
    if (id < 0 || id >= shape_.vocab_size)
        throw std::invalid_argument("token id " + std::to_string(id) +
                                    " is outside the vocabulary");
}

const Packed& Decoder::packed(const std::string& name) const {
    return const_cast<Decoder*>(this)->find(name).packed;
}

std::size_t Decoder::nbytes() const {
    std::size_t total = 0;
    for (const auto& [name, weight] : weights_) total += weight.packed.nbytes();
    return total;
}

}  // namespace forerun
