#include "bind_config.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "bind.h"

namespace nb = nanobind;

namespace forerun {
namespace {

Activation activation_of(const std::string& name) {
    if (name == "silu") return Activation::Silu;
    if (name == "gelu") return Activation::Gelu;
    if (name == "gelu_tanh") return Activation::GeluTanh;
    if (name == "swiglu_oai") return Activation::SwigluOai;
    if (name == "relu2") return Activation::Relu2;
    need(name == "relu", "unknown activation '" + name + "'");
    return Activation::Relu;
}

LayerShape layer_shape_of(nb::handle layer) {
    const auto shared = get<std::optional<int>>(layer, "shares_kv_of");
    LayerShape shape{.experts = {},
                     .has_mlp = get<bool>(layer, "has_mlp"),
                     .inner = get<std::optional<int>>(layer, "intermediate_size").value_or(0),
                     .shares_kv_of = shared.value_or(-1),
                     .has_values = get<bool>(layer, "has_values"),
                     .has_mixer = get<bool>(layer, "has_mixer")};
    const auto sparsity_cutoff = get<std::optional<float>>(layer, "sparsity_cutoff");
    shape.has_sparse_activation = sparsity_cutoff.has_value();
    shape.sparsity_cutoff = sparsity_cutoff.value_or(0.0f);
    const nb::object experts = layer.attr("experts");
    if (experts.is_none()) return shape;
    shape.experts = {.num = get<int>(experts, "num_experts"),
                     .num_active = get<int>(experts, "num_active"),
                     .inner = get<int>(experts, "intermediate_size"),
                     .is_renormalized = get<bool>(experts, "renormalized"),
                     .is_sigmoid = get<std::string>(experts, "scoring") == "sigmoid",
                     .has_choice_bias = get<bool>(experts, "has_choice_bias"),
                     .sum_offset = get<float>(experts, "sum_offset"),
                     .scale = get<float>(experts, "scale"),
                     .num_groups = get<int>(experts, "num_groups"),
                     .num_active_groups = get<int>(experts, "num_active_groups"),
                     .group_best = get<int>(experts, "group_best"),
                     .has_norms = get<bool>(experts, "has_norms"),
                     .gates_mlp = get<bool>(experts, "gates_mlp")};
    const ExpertsShape& e = shape.experts;
    need(std::min({e.num, e.num_active, e.inner}) > 0 && e.num <= 1 << 16 && e.inner <= 1 << 20 &&
             e.num_active <= kMostActive && e.num_groups > 0 && e.num % e.num_groups == 0 &&
             e.num_active_groups > 0 && e.num_active_groups <= std::min(e.num_groups, kMostActive) &&
             e.num_active <= e.num_active_groups * (e.num / e.num_groups) && e.group_best > 0 && e.group_best <= 2,
         "experts are out of range");
    return shape;
}

QkNorm qk_norm_of(const std::optional<std::string>& name) {
    if (!name) return QkNorm::None;
    return *name == "whole" ? QkNorm::Whole : *name == "each" ? QkNorm::Each : QkNorm::Head;
}

LatentShape latent_shape_of(nb::handle latent) {
    LatentShape shape;
    if (latent.is_none()) return shape;
    const auto size = [&](const char* name) {
        const auto value = get<std::optional<long long>>(latent, name).value_or(0);
        need(value >= 0 && value <= 1 << 16, std::string(name) + " is out of range");
        return static_cast<int>(value);
    };
    shape = {size("rank"), size("rope_dim"), size("query_dim"), size("value_dim"), size("query_rank"),
             get<float>(latent, "norm_eps")};
    need(std::min({shape.rank, shape.rope_dim, shape.query_dim, shape.value_dim}) > 0,
         "sizes of latents are out of range");
    return shape;
}

StreamsShape streams_shape_of(nb::handle streams) {
    if (streams.is_none()) return {};
    const StreamsShape shape{get<int>(streams, "num"), get<int>(streams, "laurel_rank")};
    need(shape.num > 1 && shape.num <= kMostStreams && shape.laurel_rank > 0 && shape.laurel_rank <= 1 << 16,
         "streams are out of range");
    return shape;
}

}  // namespace

MixerShape mixer_shape_of(nb::handle recurrent, int hidden_size) {
    MixerShape shape;
    if (recurrent.is_none()) return shape;
    const auto size = [&](const char* name) {
        const auto value = get<long long>(recurrent, name);
        need(value >= 0 && value <= 1 << 16, std::string(name) + " is out of range");
        return static_cast<int>(value);
    };
    const auto kind = get<std::string>(recurrent, "kind");
    shape.kind = kind == "delta" ? MixerKind::Delta
                                 : kind == "mamba2" ? MixerKind::Mamba2 : MixerKind::Conv;
    need(shape.kind != MixerKind::Conv || kind == "conv", "unknown recurrent layer '" + kind + "'");
    shape.num_taps = size("kernel");
    shape.has_bias = get<bool>(recurrent, "conv_bias");
    shape.num_channels = nb::cast<int>(recurrent.attr("num_channels")(hidden_size));
    if (shape.kind == MixerKind::Conv) return shape;
    shape.num_heads = size("num_heads");
    shape.num_key_heads = size("num_key_heads");
    shape.key_dim = size("key_dim");
    shape.value_dim = size("value_dim");
    shape.is_tiled = get<bool>(recurrent, "tiled");
    std::tie(shape.least_step, shape.most_step) =
        get<std::pair<float, float>>(recurrent, "step_limits");
    need(shape.num_heads > 0, "a recurrent layer needs heads");
    return shape;
}

Shape shape_of(nb::handle config) {
    const auto size = [&](const char* name, int least = 1) {  // or none: the least
        const auto value = get<std::optional<long long>>(config, name).value_or(least);
        need(value >= least && value <= kLargest, std::string(name) + " is out of range");
        return static_cast<int>(value);
    };
    const auto cap = [&](const char* name) {
        return get<std::optional<float>>(config, name).value_or(0.0f);
    };
    const auto norms = get<std::string>(config, "norms");
    std::vector<LayerShape> layers;
    const auto borrows = get<bool>(config, "borrows_kv");
    for (int i = 0; i < size("num_layers", 0); ++i) {
        LayerShape& layer = layers.emplace_back(layer_shape_of(config.attr("layer")(i)));
        const auto heads = nb::cast<std::pair<int, int>>(config.attr("heads")(i));
        layer.kv = {heads.first, heads.second, nb::cast<int>(config.attr("value_dim")(i))};
        const auto is_size = [](int number) { return number > 0 && number <= kLargest; };
        need(is_size(layer.kv.value_dim) && is_size(heads.first) && is_size(heads.second) && layer.inner >= 0 &&
                 layer.inner <= kLargest &&
                 layer.shares_kv_of < (borrows ? kLargest : i) &&
                 (!borrows || layer.shares_kv_of >= 0),
             "a layer's sizes are out of range");
        if (layer.inner == 0) layer.inner = size("intermediate_size");
        layer.mixer = mixer_shape_of(config.attr("layer")(i).attr("recurrent"), size("hidden_size"));
    }
    return {.vocab_size = size("vocab_size"),
            .hidden_size = size("hidden_size"),
            .num_layers = size("num_layers", 0),
            .num_heads = size("num_heads"),
            .max_position = size("max_position"),
            .activation = activation_of(get<std::string>(config, "activation")),
            .is_gated = get<bool>(config, "gated_mlp"),
            .is_layer_norm = get<std::string>(config, "norm") == "layer",
            .norms_before = norms != "after",
            .norms_after = norms == "after" || norms == "both",
            .is_parallel = norms == "parallel",
            .qk_norm = qk_norm_of(get<std::optional<std::string>>(config, "qk_norm")),
            .norms_turned = get<bool>(config, "qk_norm_after_rope"),
            .latent = latent_shape_of(config.attr("latent")),
            .has_sinks = get<bool>(config, "attention_sinks"),
            .has_attention_gate = get<bool>(config, "attention_gate"),
            .norm_eps = get<float>(config, "norm_eps"),
            .position_offset = size("learned_position_offset", -1),
            .embedding_multiplier = get<float>(config, "embedding_multiplier"),
            .residual_multiplier = get<float>(config, "residual_multiplier"),
            .attention_scale = get<float>(config, "scale"),
            .logits_divisor = get<float>(config, "logits_divisor"),
            .attention_cap = cap("attention_cap"),
            .logits_cap = cap("logits_cap"),
            .query_growth = get<float>(config, "query_growth"),
            .query_growth_every = size("query_growth_every"),
            .norms_values = get<bool>(config, "value_norm"),
            .has_layer_scales = get<bool>(config, "layer_scales"),
            .per_layer_width = size("per_layer_width", 0),
            .streams = streams_shape_of(config.attr("streams")),
            .borrows_kv = borrows,
            .layers = std::move(layers)};
}

}  // namespace forerun
