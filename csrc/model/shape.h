// The shape of a decoder, as its configuration gives it: sizes, and what its layers are.

#pragma once

#include <cstdint>
#include <vector>

#include "model/cache.h"
#include "model/recurrence.h"
#include "model/types.h"

namespace forerun {

inline constexpr int kMostActive = 64;  // experts of a row

struct ExpertsShape {
    int num = 0, num_active = 0, inner = 0;  // num 0: none
    bool is_renormalized = true;
    bool is_sigmoid = false;       // scores, else a softmax
    bool has_choice_bias = false;  // added to the scores that choose, not to weights
    float sum_offset = 0.0f, scale = 1.0f;
    int num_groups = 1, num_active_groups = 1, group_best = 1;  // experts of other groups cannot be chosen
    bool has_norms = false;  // of their inputs, their router's, their sum and the dense MLP's
    bool gates_mlp = false;  // the dense MLP is multiplied by a sigmoid of the row
};

struct LayerShape {
    ExpertsShape experts;
    bool has_mlp = true;
    int inner = 0;           // of its MLP
    KvShape kv = {};         // those that it attends to
    int shares_kv_of = -1;   // the layer whose keys and values they are; -1: its own
    bool has_values = true;  // else they are the keys before norm and rotation
    MixerShape mixer = {};   // in attention's place, if it exists
    bool has_mixer = true;   // attention or what is in its place
    bool is_bidirectional = false;  // a row sees the later ones of its segment too
    // An MLP's gates below a row's mean and so many standard deviations are cut off.
    bool has_sparse_activation = false;
    float sparsity_cutoff = 0.0f;

    bool has_feed_forward() const { return has_mlp || experts.num > 0; }
    int num_projected() const { return shares_kv_of >= 0 ? 0 : kv.num_heads * (1 + has_values); }
};

// Each: of each head, with weights of its own.
enum class QkNorm : std::uint8_t { None, Head, Each, Whole };
// Attention to latents, which are keys and values of all heads: see latent.cpp. `rank` 0: none.
struct LatentShape {
    int rank = 0, rope_dim = 0, query_dim = 0, value_dim = 0, query_rank = 0;
    float norm_eps = 1e-6f;

    bool exists() const { return rank > 0; }
};

inline constexpr int kMostStreams = 8;
// Streams of states of each row, and a pair of matrices beside attention: see streams.cpp. `num` 0: none.
struct StreamsShape {
    int num = 0, laurel_rank = 0;

    bool exists() const { return num > 0; }
};

struct Shape {
    int vocab_size, hidden_size, num_layers, num_heads, max_position;
    Activation activation = Activation::Silu;
    bool is_gated = true, is_layer_norm = false;
    bool norms_before = true, norms_after = false;  // of what a sublayer reads, and of what it adds
    bool is_parallel = false;  // an MLP reads what attention read, and both are added
    QkNorm qk_norm = QkNorm::None;
    bool norms_turned = false;  // heads of q and k, after rope
    LatentShape latent = {};
    bool has_sinks = false;
    bool has_attention_gate = false;  // heads' outputs are multiplied by a sigmoid of the row
    float norm_eps = 1e-5f;
    int position_offset = -1;  // row of the position table that position 0 reads; -1: no table
    float embedding_multiplier = 1.0f, residual_multiplier = 1.0f, attention_scale = 1.0f,
          logits_divisor = 1.0f;
    float attention_cap = 0.0f, logits_cap = 0.0f;  // 0: none
    float query_growth = 0.0f;  // of 1 + query_growth ln(1 + floor(position / query_growth_every))
    int query_growth_every = 1;
    bool norms_values = false;      // each head of them, without a weight
    bool has_layer_scales = false;  // what a layer leaves is multiplied by a number
    int per_layer_width = 0;        // of embeddings for each layer; 0: none
    StreamsShape streams = {};
    // Layers read another model's cache, whose layers `shares_kv_of` names: a row sees what is committed
    // there, and not itself.
    bool borrows_kv = false;
    int attention_width = 0;    // of the rows that q, k and v read, which are given; 0: they read the normed states
    bool fills_blocks = false;  // windows count the rows before a segment
    std::vector<LayerShape> layers = {};
};

}  // namespace forerun
