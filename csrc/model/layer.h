// The packed weights of a decoder's layers, and where passes look for each.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "kernels/formats.h"
#include "model/types.h"

namespace forerun {

// Matrices of one MLP, or of all experts of a layer, one below the other.
struct Mlp {
    Linear gate, up, down;
    int inner = 0;  // of one
    bool has_sparse_activation = false;  // gates are cut off, so many standard deviations above their mean
    float sparsity_cutoff = 0.0f;
};

struct Layer {
    // An absent weight is null. `sinks` has a logit for each head.
    Norm attn_norm, mlp_norm, attn_out_norm, mlp_out_norm, q_norm, k_norm, sinks;
    Norm experts_norm, router_norm, dense_out_norm, experts_out_norm, experts_scale, inp_norm, scale,
        mlp_gate, choice_bias;
    Linear q, k, v, o, attn_gate, router, inp_gate, inp_proj;
    // Of a recurrent state; `conv` is (taps, channels).
    Norm conv, conv_bias, dt_bias, decay, skip, state_norm;
    Linear in_proj, z, beta, dt;
    // Of attention to latents.
    Linear q_a, q_rope, kv_a, k_rope, k_b, v_b;
    Norm q_a_norm, kv_a_norm;
    // Of streams; `altup_router` is (streams, D), `altup_predict` and `altup_correct` (..., streams).
    Norm laurel_norm, altup_router, altup_router_norm, altup_predict, altup_correct, altup_scale;
    Linear laurel_left, laurel_right;
    std::vector<float> key_scale;  // (key dim): 1 / sqrt(key dim)
    Mlp mlp, experts;
    int kind = 0;
};

// (outputs, inputs) of a matrix, else (1, count).
struct WeightShape {
    bool is_matrix;
    int num_out, num_in;
};
using WeightShapes = std::map<std::string, WeightShape>;

// A row of the table of weights: what is expected, where passes look for it, and its memory.
struct Weight {
    int num_out, num_in;  // of numbers that are no matrix, columns that become rows, and how many they are
    bool is_optional;
    Linear* linear;  // one of these
    Norm* norm;
    Packed packed;
};

}  // namespace forerun
