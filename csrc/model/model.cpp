// The decoder's weights, by name. plan.cpp lays out a pass, step.cpp and mlp.cpp compute it; its head is head.h's.

#include "model/model.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <stdexcept>

namespace forerun {

Decoder::Decoder(Runtime& runtime, const Shape& shape, const WeightShapes& weights)
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
    place_weights(weights);
    check_mixers();
    check_latent();
    check_streams();
}

Decoder::Decoder(Runtime& runtime, const Shape& shape, std::vector<Layer> layers, const Norm& norm)
    : Decoder(runtime, shape, {}) {
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

namespace {

template <class Of, class T>
struct Place {
    const char* name;
    T Of::*at;
};

template <class Of, class T, std::size_t N>
T* find_place(const Place<Of, T> (&places)[N], Of& of, std::string_view name) {
    for (const Place<Of, T>& place : places)
        if (name == place.name) return &(of.*place.at);
    return nullptr;
}

// Weights of layers are called as the fields that hold them.
#define PLACE(name) {#name, &Layer::name}
constexpr Place<Mlp, Linear> kMlpMatrices[] = {{"gate", &Mlp::gate}, {"up", &Mlp::up}, {"down", &Mlp::down}};
constexpr Place<Layer, Linear> kMatrices[] = {
    PLACE(q), PLACE(k), PLACE(v), PLACE(o), PLACE(attn_gate), PLACE(router), PLACE(inp_gate), PLACE(inp_proj),
    PLACE(in_proj), PLACE(z), PLACE(beta), PLACE(dt), PLACE(q_a), PLACE(q_rope), PLACE(kv_a), PLACE(k_rope),
    PLACE(k_b), PLACE(v_b), PLACE(laurel_left), PLACE(laurel_right)};
constexpr Place<Layer, Norm> kNumbers[] = {
    PLACE(attn_norm), PLACE(mlp_norm), PLACE(attn_out_norm), PLACE(mlp_out_norm), PLACE(q_norm), PLACE(k_norm),
    PLACE(sinks), PLACE(experts_norm), PLACE(router_norm), PLACE(dense_out_norm), PLACE(experts_out_norm),
    PLACE(experts_scale), PLACE(inp_norm), PLACE(scale), PLACE(mlp_gate), PLACE(choice_bias), PLACE(conv),
    PLACE(conv_bias), PLACE(dt_bias), PLACE(decay), PLACE(skip), PLACE(state_norm), PLACE(q_a_norm),
    PLACE(kv_a_norm), PLACE(laurel_norm), PLACE(altup_router), PLACE(altup_router_norm), PLACE(altup_predict),
    PLACE(altup_correct), PLACE(altup_scale)};
#undef PLACE

}  // namespace

// The weight's place among those of the model, or of its layer: "layers.3.q".
Weight Decoder::place_of(std::string_view name, const WeightShape& shape) {
    static constexpr Place<Decoder, Linear> matrices[] = {
        {"embed", &Decoder::embed_},
        {"head", &Decoder::head_},
        {"positions", &Decoder::positions_},
        {"per_layer_embed", &Decoder::per_layer_embed_},
        {"per_layer_proj", &Decoder::per_layer_proj_},
        {"altup_proj", &Decoder::altup_proj_},
        {"altup_unembed", &Decoder::altup_unembed_}};
    static constexpr Place<Decoder, Norm> numbers[] = {{"norm", &Decoder::final_norm_},
                                                       {"per_layer_norm", &Decoder::per_layer_norm_}};
    constexpr std::string_view experts = "expert_", layers = "layers.";
    Weight weight{shape.num_out, shape.num_in, false, find_place(matrices, *this, name),
                  find_place(numbers, *this, name), {}};
    std::size_t index = layers_.size();
    if (name.starts_with(layers))
        std::from_chars(name.data() + layers.size(), name.data() + name.size(), index);
    if (index < layers_.size()) {
        Layer& layer = layers_[index];
        const std::string_view own = name.substr(name.rfind('.') + 1);
        const bool is_expert = own.starts_with(experts);
        weight.linear = is_expert ? find_place(kMlpMatrices, layer.experts, own.substr(experts.size()))
                                  : find_place(kMlpMatrices, layer.mlp, own);
        if (!weight.linear) weight.linear = find_place(kMatrices, layer, own);
        weight.norm = find_place(kNumbers, layer, own);
        if (own == "conv") weight.num_out = mixer_of(static_cast<int>(index)).num_taps;
    }
    if (shape.is_matrix ? !weight.linear : !weight.norm)
        throw std::invalid_argument("there is no place for a weight called " + std::string(name));
    return weight;
}

// Places for weights, and what layers have beside them.
void Decoder::place_weights(const WeightShapes& weights) {
    for (const auto& [name, shape] : weights) weights_[name] = place_of(name, shape);
    if (!weights.empty() && !weights_.contains("head")) {  // else the embedding's
        weights_["head"] = place_of("head", {true, shape_.vocab_size, shape_.hidden_size});
        weights_["head"].is_optional = true;
    }
    for (int i = 0; i < shape_.num_layers; ++i) {
        Layer& layer = layers_[i];
        const LayerShape& l = shape_.layers[i];
        layer.mlp.inner = l.inner;
        layer.mlp.has_sparse_activation = l.has_sparse_activation;
        layer.mlp.sparsity_cutoff = l.sparsity_cutoff;
        layer.experts.inner = l.experts.inner;
        if (l.mixer.has_heads())
            layer.key_scale.assign(l.mixer.key_dim, 1.0f / std::sqrt(static_cast<float>(l.mixer.key_dim)));
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
    if (!weight.linear) throw std::invalid_argument(name + " is a norm");
    if (given.num_out != weight.num_out || given.num_read() != weight.num_in)
        throw std::invalid_argument(
            name + " is (" + std::to_string(given.num_out) + ", " + std::to_string(given.num_read()) +
            "), expected (" + std::to_string(weight.num_out) + ", " + std::to_string(weight.num_in) + ")");
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
