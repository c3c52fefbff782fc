// The decoder's weights, by name. plan.cpp lays out a pass, step.cpp computes it, head.cpp reads
// its result.

#include "model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace forerun {
namespace {

Buffer floats(std::span<const float> values, std::size_t padded) {
    Buffer buffer(padded * sizeof(float));
    std::copy(values.begin(), values.end(), buffer.as<float>());
    return buffer;
}

std::string full_name(int layer, const std::string& name) {
    return layer < 0 ? name : "layers." + std::to_string(layer) + "." + name;
}

}  // namespace

Decoder::Decoder(const Shape& shape, const Kernels& kernels, int num_threads)
    : shape_(shape),
      kernels_(kernels),
      layers_(static_cast<std::size_t>(shape.num_layers)),
      pool_(num_threads) {
    if (shape.hidden_size % kTile || shape.head_dim % kTile || shape.intermediate_size % kTile)
        throw std::invalid_argument("hidden size, head size and MLP size must be multiples of 16");
    if (shape.num_heads % shape.num_kv_heads)
        throw std::invalid_argument("heads must be a multiple of kv heads");
}

Packed& Decoder::find(int layer, const std::string& name) {
    if (layer < 0) {
        if (name == "embed") return embed_;
        if (name == "head") return head_;
        if (name == "positions") return positions_;
    } else if (layer < shape_.num_layers) {
        Layer& l = layers_[static_cast<std::size_t>(layer)];
        const std::pair<const char*, Packed*> all[] = {
            {"q", &l.q},       {"k", &l.k},   {"v", &l.v},      {"o", &l.o},
            {"gate", &l.gate}, {"up", &l.up}, {"down", &l.down}};
        for (const auto& [key, packed] : all)
            if (name == key) return *packed;
    }
    throw std::invalid_argument("no linear layer is called " + full_name(layer, name));
}

const Packed& Decoder::packed(int layer, const std::string& name) const {
    const Packed& packed = const_cast<Decoder*>(this)->find(layer, name);
    if (!packed.linear.tiles) throw std::invalid_argument("no weight " + full_name(layer, name));
    return packed;
}

void Decoder::set_linear(int layer, const std::string& name, Stored type, int num_out, int num_in,
                         const std::uint8_t* rows, const float* bias) {
    find(layer, name) = pack(type, num_out, num_in, rows, bias, pool_.size());
}

void Decoder::add_blank(int layer, const std::string& name, WeightFormat format, int num_out, int num_in,
                        bool has_bias) {
    find(layer, name) = blank(format, num_out, num_in, has_bias);
}

void Decoder::set_norm(int layer, const std::string& name, std::span<const float> weight,
                       std::span<const float> bias, float eps, bool is_layer) {
    NormWeights* norm = nullptr;
    if (layer < 0 && name == "norm") norm = &final_norm_;
    if (layer >= 0 && layer < shape_.num_layers) {
        Layer& l = layers_[static_cast<std::size_t>(layer)];
        if (name == "attn_norm") norm = &l.attn_norm;
        if (name == "mlp_norm") norm = &l.mlp_norm;
        if (name == "q_norm") norm = &l.q_norm;
        if (name == "k_norm") norm = &l.k_norm;
    }
    if (!norm) throw std::invalid_argument("no norm is called " + full_name(layer, name));
    const bool is_head_norm = name == "q_norm" || name == "k_norm";
    const std::size_t width =
        static_cast<std::size_t>(is_head_norm ? shape_.head_dim : shape_.hidden_size);
    if (weight.size() != width || (!bias.empty() && bias.size() != width))
        throw std::invalid_argument(full_name(layer, name) + " must have " + std::to_string(width) +
                                    " values");
    norm->weight = floats(weight, width);
    norm->bias = floats(bias, bias.empty() ? 0 : width);
    norm->norm = {norm->weight.as<float>(), bias.empty() ? nullptr : norm->bias.as<float>(), eps,
                  is_layer};
}

void Decoder::set_rope(std::span<const float> frequencies, float factor) {
    if (2 * frequencies.size() > static_cast<std::size_t>(shape_.head_dim))
        throw std::invalid_argument("more rotated pairs than a head has");
    frequencies_.assign(frequencies.begin(), frequencies.end());
    rope_factor_ = factor;
}

void Decoder::check() const {
    const auto expect = [](const Packed& packed, int layer, const char* name, int num_out,
                           int num_in) {
        const Linear& l = packed.linear;
        if (!l.tiles)
            throw std::invalid_argument("weight " + full_name(layer, name) + " is missing");
        if (l.num_out != num_out || l.num_in != num_in)
            throw std::invalid_argument(
                full_name(layer, name) + " is (" + std::to_string(l.num_out) + ", " +
                std::to_string(l.num_in) + "), expected (" + std::to_string(num_out) + ", " +
                std::to_string(num_in) + ")");
    };
    const auto expect_norm = [](const NormWeights& norm, int layer, const char* name) {
        if (!norm.norm.weight)
            throw std::invalid_argument("weight " + full_name(layer, name) + " is missing");
    };
    const Shape& s = shape_;
    const int q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
    expect(embed_, -1, "embed", s.vocab_size, s.hidden_size);
    if (head_.linear.tiles) expect(head_, -1, "head", s.vocab_size, s.hidden_size);
    if (s.position_offset >= 0 && positions_.linear.num_in != s.hidden_size)
        throw std::invalid_argument("weight positions is missing");
    expect_norm(final_norm_, -1, "norm");
    for (int i = 0; i < s.num_layers; ++i) {
        const Layer& l = layers_[static_cast<std::size_t>(i)];
        expect_norm(l.attn_norm, i, "attn_norm");
        expect_norm(l.mlp_norm, i, "mlp_norm");
        expect(l.q, i, "q", q, s.hidden_size);
        expect(l.k, i, "k", kv, s.hidden_size);
        expect(l.v, i, "v", kv, s.hidden_size);
        expect(l.o, i, "o", s.hidden_size, q);
        if (s.is_gated) expect(l.gate, i, "gate", s.intermediate_size, s.hidden_size);
        expect(l.up, i, "up", s.intermediate_size, s.hidden_size);
        expect(l.down, i, "down", s.hidden_size, s.intermediate_size);
    }
}

std::size_t Decoder::nbytes() const {
    std::size_t total = embed_.nbytes() + positions_.nbytes() + head_.nbytes();
    const auto norm = [](const NormWeights& n) { return n.weight.nbytes() + n.bias.nbytes(); };
    total += norm(final_norm_);
    for (const Layer& l : layers_) {
        for (const Packed* packed : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
            total += packed->nbytes();
        for (const NormWeights* n : {&l.attn_norm, &l.mlp_norm, &l.q_norm, &l.k_norm})
            total += norm(*n);
    }
    return total;
}

}  // namespace forerun
