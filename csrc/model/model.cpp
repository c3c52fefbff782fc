// The decoder's weights, by name. plan.cpp lays out a pass, step.cpp and mlp.cpp compute it; its head is head.h's.

#include "model/model.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace forerun {

Decoder::Decoder(Runtime& runtime, const Shape& shape)
    : shape_(shape),
      runtime_(runtime),
      kernels_(runtime.kernels),
      pool_(runtime.pool),
      layers_(static_cast<std::size_t>(shape.num_layers)),
      reads_hidden_(runtime, {shape.vocab_size, shape.hidden_size, shape.logits_cap, shape.logits_divisor}, head_,
                    &embed_) {
    if (shape.hidden_size % kTile)
        throw std::invalid_argument("the hidden size must be a multiple of 16");
    for (const LayerShape& layer : shape.layers) {
        const ExpertsShape& experts = layer.experts;
        if ((!layer.has_mixer || !layer.has_feed_forward()) && (shape.norms_after || shape.per_layer_width > 0))
            throw std::invalid_argument("layers of one sublayer with such norms or embeddings are unknown");
        if (layer.has_mixer == layer.has_feed_forward() && !layer.has_mixer)
            throw std::invalid_argument("a layer needs a sublayer");
        most_dim_ = std::max({most_dim_, layer.kv.head_dim, layer.mixer.value_dim});
        if (shape.num_heads % layer.kv.num_heads)
            throw std::invalid_argument("heads must be a multiple of kv heads");
        if (layer.kv.head_dim % kTile || layer.inner % kTile)
            throw std::invalid_argument("head size and MLP size must be multiples of 16");
        if (layer.has_sparse_activation && (!layer.has_mlp || !shape.is_gated))
            throw std::invalid_argument("only gates of MLPs can be cut off");
        if (experts.inner % kTile || experts.num_active > experts.num)
            throw std::invalid_argument(
                "experts' MLP size must be a multiple of 16, and no more active than there are");
    }
    if (shape.per_layer_width % kGroup)
        throw std::invalid_argument("the width of per-layer embeddings must be a multiple of 32");
    zeros_.assign(most_dim_, 0.0f);
    ones_.assign(most_dim_, 1.0f);
    int heads = 0;
    for (int i = 0; i < shape.num_layers; ++i) heads = std::max(heads, num_projected_heads(i));
    heads_ = std::vector<Counter>(heads);
    units_ = std::vector<Counter>(most_split_units());
    name_weights();
    check_mixers();
    check_latent();
    check_streams();
}

Decoder::Decoder(Runtime& runtime, const Shape& shape, std::vector<Layer> layers, const Norm& norm)
    : Decoder(runtime, shape) {
    weights_.clear();
    layers_ = std::move(layers);
    final_norm_ = norm;
    is_checked_ = true;
    for (const Layer& layer : layers_)
        for (const Linear* each : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.mlp.gate, &layer.mlp.up, &layer.mlp.down})
            layers_nbytes_ += each->num_tiles() * each->tile_nbytes;
}

Decoder::~Decoder() {
    const Runtime::PassLock lock(runtime_);
    pool_.settle();
}

// The table of weights: every name, its shape, and where it goes.
void Decoder::name_weights() {
    const Shape& s = shape_;
    const int width = s.hidden_size, own = s.per_layer_width;
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
    if (own > 0) {
        matrix("per_layer_embed", per_layer_embed_, 0, s.num_layers * own);
        matrix("per_layer_proj", per_layer_proj_, s.num_layers * own, width);
        norm("per_layer_norm", per_layer_norm_, own);
    }
    if (s.streams.exists()) {
        matrix("altup_proj", altup_proj_, (s.streams.num - 1) * width, width);
        matrix("altup_unembed", altup_unembed_, (s.streams.num - 1) * width, width);
    }
    const auto mlp = [&](std::string name, Mlp& to, int size, int count, bool is_gated) {
        to.inner = size;
        if (is_gated) matrix((name + "gate").c_str(), to.gate, count * size, width);
        matrix((name + "up").c_str(), to.up, count * size, width);
        matrix((name + "down").c_str(), to.down, count * width, size);
    };
    const bool is_wide = s.qk_norm == QkNorm::Whole || s.qk_norm == QkNorm::Each;
    for (int i = 0; i < s.num_layers; ++i) {
        Layer& layer = layers_[i];
        const LayerShape& l = s.layers[i];
        const int q = s.num_heads * l.kv.head_dim, kv = l.kv.num_heads * l.kv.head_dim;
        const bool has_keys = l.shares_kv_of < 0;
        prefix = "layers." + std::to_string(i) + ".";
        if (s.norms_before && l.has_mixer) norm("attn_norm", layer.attn_norm, width);
        if (s.norms_before && !s.is_parallel && l.has_feed_forward()) norm("mlp_norm", layer.mlp_norm, width);
        if (s.norms_after) {
            norm("attn_out_norm", layer.attn_out_norm, width);
            norm("mlp_out_norm", layer.mlp_out_norm, width);
        }
        if (l.mixer.exists()) {
            name_mixer(layer, l.mixer, prefix);
        } else if (s.latent.exists() && l.has_mixer) {
            name_latent(layer, prefix);
        } else if (l.has_mixer) {
            matrix("q", layer.q, q, width);
            if (has_keys) matrix("k", layer.k, kv, width);
            if (has_keys && l.has_values) matrix("v", layer.v, kv, width);
            matrix("o", layer.o, width, q);
            if (s.has_attention_gate) matrix("attn_gate", layer.attn_gate, q, width);
            if (s.qk_norm != QkNorm::None) {
                norm("q_norm", layer.q_norm, is_wide ? q : l.kv.head_dim);
                if (has_keys) norm("k_norm", layer.k_norm, is_wide ? kv : l.kv.head_dim);
            }
            if (s.has_sinks) norm("sinks", layer.sinks, s.num_heads);
        }
        if (l.has_mlp) mlp("", layer.mlp, l.inner, 1, s.is_gated);
        layer.mlp.has_sparse_activation = l.has_sparse_activation;
        layer.mlp.sparsity_cutoff = l.sparsity_cutoff;
        if (s.streams.exists()) name_streams(layer, prefix);
        if (own > 0) {
            matrix("inp_gate", layer.inp_gate, own, width);
            matrix("inp_proj", layer.inp_proj, width, own);
            norm("inp_norm", layer.inp_norm, width);
        }
        if (s.has_layer_scales) norm("scale", layer.scale, 1);
        const ExpertsShape& experts = l.experts;
        if (experts.num == 0) continue;
        if (experts.has_choice_bias) norm("choice_bias", layer.choice_bias, experts.num);
        if (experts.gates_mlp) norm("mlp_gate", layer.mlp_gate, width);
        if (experts.has_norms) {
            norm("experts_norm", layer.experts_norm, width);
            norm("router_norm", layer.router_norm, width);
            norm("dense_out_norm", layer.dense_out_norm, width);
            norm("experts_out_norm", layer.experts_out_norm, width);
            norm("experts_scale", layer.experts_scale, experts.num);
        }
        matrix("router", layer.router, experts.num, width);
        mlp("expert_", layer.experts, experts.inner, experts.num, s.is_gated);
    }
}

void Decoder::name_latent(Layer& layer, const std::string& prefix) {
    const LatentShape& latent = shape_.latent;
    const int width = shape_.hidden_size, heads = shape_.num_heads;
    const auto matrix = [&](const char* name, Linear& to, int num_out, int num_in) {
        weights_[prefix + name] = {num_out, num_in, false, &to, nullptr, {}};
    };
    const auto norm = [&](const char* name, Norm& to, int size) {
        weights_[prefix + name] = {1, size, false, nullptr, &to, {}};
    };
    const int made_of = latent.query_rank > 0 ? latent.query_rank : width;
    if (latent.query_rank > 0) {
        matrix("q_a", layer.q_a, made_of, width);
        norm("q_a_norm", layer.q_a_norm, made_of);
    }
    matrix("q", layer.q, heads * latent.query_dim, made_of);
    matrix("q_rope", layer.q_rope, heads * latent.rope_dim, made_of);
    matrix("kv_a", layer.kv_a, latent.rank, width);
    norm("kv_a_norm", layer.kv_a_norm, latent.rank);
    matrix("k_rope", layer.k_rope, latent.rope_dim, width);
    matrix("k_b", layer.k_b, heads * latent.rank, latent.query_dim);
    matrix("v_b", layer.v_b, heads * latent.value_dim, latent.rank);
    matrix("o", layer.o, width, heads * latent.value_dim);
}

void Decoder::name_mixer(Layer& layer, const MixerShape& mixer, const std::string& prefix) {
    const int width = shape_.hidden_size, channels = mixer.num_channels;
    const auto matrix = [&](const char* name, Linear& to, int num_out, int num_in) {
        weights_[prefix + name] = {num_out, num_in, false, &to, nullptr, {}};
    };
    const auto numbers = [&](const char* name, Norm& to, int count, int num_columns = 1) {
        weights_[prefix + name] = {num_columns, count, false, nullptr, &to, {}};
    };
    matrix("in_proj", layer.in_proj, mixer.has_heads() ? channels : 3 * width, width);
    matrix("o", layer.o, width, mixer.has_heads() ? mixer.value_width() : width);
    numbers("conv", layer.conv, channels * mixer.num_taps, mixer.num_taps);
    if (mixer.has_bias) numbers("conv_bias", layer.conv_bias, channels);
    if (!mixer.has_heads()) return;
    matrix("z", layer.z, mixer.value_width(), width);
    matrix("dt", layer.dt, mixer.num_heads, width);
    numbers("dt_bias", layer.dt_bias, mixer.num_heads);
    numbers("decay", layer.decay, mixer.num_heads);
    const bool is_delta = mixer.kind == MixerKind::Delta;
    if (is_delta) matrix("beta", layer.beta, mixer.num_heads, width);
    if (!is_delta) numbers("skip", layer.skip, mixer.num_heads);
    numbers("state_norm", layer.state_norm, is_delta ? mixer.value_dim : mixer.value_width());
    const auto dim = static_cast<float>(mixer.key_dim);
    layer.key_scale.assign(mixer.key_dim, 1.0f / std::sqrt(dim));
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
    const bool is_dense = name.starts_with("layers.") && !shape_.latent.exists() && name.find("expert_") == name.npos &&
                          name.find("router") == name.npos && name.find("inp_") == name.npos &&
                          name.find("laurel") == name.npos;
    const bool is_token = name == "embed" || name == "head";
    if (given.flat && !is_dense && !(is_token && given.is_by_row() && !given.flat->uses_hadamard))
        throw std::invalid_argument(name + " cannot read flattened rows");
    if (given.order && !is_dense)
        throw std::invalid_argument(name + " cannot read columns in another order");
    *weight.linear = given;
    weight.packed = std::move(packed);
}

void Decoder::set_norm(const std::string& name, std::span<const float> values,
                       std::span<const float> bias) {
    Weight& weight = find(name);
    const std::size_t width = static_cast<std::size_t>(weight.num_in);
    if (!weight.norm) throw std::invalid_argument(name + " is not a norm");
    if (values.size() != width || (!bias.empty() && bias.size() != width))
        throw std::invalid_argument(name + " must have " + std::to_string(width) + " values");
    const std::size_t columns = weight.num_out;
    const auto copy = [&](std::span<const float> from) {
        Buffer buffer = weight_memory(from.size_bytes());
        const std::size_t rows = from.size() / columns;
        for (std::size_t i = 0; i < from.size(); ++i)
            buffer.as<float>()[i % columns * rows + i / columns] = from[i];
        return buffer;
    };
    weight.packed = {{}, copy(values), copy(bias)};
    const float eps = name.ends_with("_a_norm") ? shape_.latent.norm_eps : shape_.norm_eps;
    *weight.norm = {weight.packed.memory.as<float>(), weight.packed.bias.as<float>(), eps,
                    shape_.is_layer_norm};
}

void Decoder::set_attention(int layer, int window, std::span<const float> frequencies,
                            float factor) {
    if (layer < 0 || layer >= shape_.num_layers) throw std::invalid_argument("no such layer");
    const KvShape& kv = layer_shape(layer).kv;
    const bool is_bidirectional = layer_shape(layer).is_bidirectional;
    if (2 * frequencies.size() > static_cast<std::size_t>(kv.head_dim))
        throw std::invalid_argument("more rotated pairs than a head has");
    const auto found = std::ranges::find_if(kinds_, [&](const AttentionKind& kind) {
        return kind.window == window && kind.factor == factor && kind.kv == kv &&
               kind.is_bidirectional == is_bidirectional &&
               std::ranges::equal(kind.frequencies, frequencies);
    });
    layers_[layer].kind = static_cast<int>(found - kinds_.begin());
    if (found != kinds_.end()) return;
    AttentionKind& kind = kinds_.emplace_back();
    kind.window = window;
    kind.is_bidirectional = is_bidirectional;
    kind.kv = kv;
    kind.frequencies.assign(frequencies.begin(), frequencies.end());
    kind.factor = factor;
}

void Decoder::set_ranks(Ranks& ranks) {
    for (const LayerShape& layer : shape_.layers)
        if (layer.mixer.exists() || layer.experts.num > 0 || !layer.has_mlp || !layer.has_mixer ||
            shape_.latent.exists())
            throw std::invalid_argument("recurrent layers and experts cannot be cut over ranks");
    if (shape_.per_layer_width > 0 || shape_.qk_norm == QkNorm::Whole)
        throw std::invalid_argument("per-layer embeddings and norms over all heads cannot be cut over ranks");
    ranks_ = &ranks;
    for (const char* name : {"embed", "positions"})
        if (const auto found = weights_.find(name); found != weights_.end())
            found->second.is_optional |= ranks.rank() > 0;
}

void Decoder::check() {
    for (const auto& [name, weight] : weights_)
        if (!weight.is_optional && weight.packed.nbytes() == 0)
            throw std::invalid_argument("weight " + name + " is missing");
    check_flat();
    if (kinds_.empty())
        for (int i = 0; i < shape_.num_layers; ++i) set_attention(i, 0, {}, 1.0f);
    layers_nbytes_ = 0;
    for (const auto& [name, weight] : weights_)
        if (name.starts_with("layers.")) layers_nbytes_ += weight.packed.nbytes();
    is_checked_ = true;
    trim_weight_memory();
}

// Layers that read the same rows must flatten and order them alike.
void Decoder::check_flat() const {
    const auto alike = [](std::initializer_list<const Linear*> readers) {
        const Linear* first = nullptr;  // which decides how rows are rounded
        for (const Linear* reader : readers)
            if (!first && reader->format && !reader->is_float()) first = reader;
        return !first || std::ranges::all_of(readers, [&](const Linear* reader) {
            return !reader->format || reads_alike(*first, *reader);
        });
    };
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        const Layer& layer = layers_[i];
        const bool is_alike = alike({&layer.q, &layer.k, &layer.v, &layer.attn_gate, &layer.laurel_left}) &&
                              alike({&layer.in_proj, &layer.z, &layer.beta, &layer.dt}) &&
                              alike({&layer.mlp.up, &layer.mlp.gate});
        if (!is_alike)
            throw std::invalid_argument("matrices of layer " + std::to_string(i) +
                                        " that read the same inputs flatten or order them differently");
        if (mixer_of(static_cast<int>(i)).exists() && layer.o.needs_whole_rows())
            throw std::invalid_argument("the output of recurrent layer " + std::to_string(i) +
                                        " cannot have scales of rows, or an order of its own");
    }
}

void Decoder::check_latent() const {
    const LatentShape& latent = shape_.latent;
    if (!latent.exists()) return;
    for (int size : {latent.rank, latent.rope_dim, latent.query_dim, latent.value_dim, latent.query_rank})
        if (size % kTile) throw std::invalid_argument("sizes of latents must be multiples of 16");
    const KvShape kv{1, latent.rope_dim + latent.rank, latent.rank};
    const bool is_alike = std::ranges::all_of(shape_.layers, [&](const LayerShape& layer) {
        return layer.kv == kv && layer.shares_kv_of < 0;
    });
    if (!is_alike || shape_.qk_norm != QkNorm::None || shape_.has_sinks || shape_.has_attention_gate ||
        shape_.norms_values || shape_.borrows_kv)
        throw std::invalid_argument("attention to latents with other heads, norms, sinks or gates is unknown");
}

void Decoder::check_mixers() const {
    for (const LayerShape& layer : shape_.layers) {
        const MixerShape& mixer = layer.mixer;
        if (mixer.exists() && (shape_.norms_after || shape_.per_layer_width > 0))
            throw std::invalid_argument("recurrent layers with such norms or embeddings are unknown");
        if (mixer.exists()) check_sizes(mixer);
    }
}

Head& Decoder::head() {
    if (!is_checked_) check();
    return reads_hidden_;
}

void Decoder::apply(const Linear& linear, const float* x, int num_rows, float* out) {
    Head(runtime_, {linear.num_tiles() * kTile, linear.num_read()}, linear).logits(x, num_rows, out);
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
