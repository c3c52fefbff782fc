// Layers with a recurrent state, as the kernels and the cache see them.
//
// A head has a state S (key dim, value dim). With S at the beginning of a row's chunk of 64 positions, S0,
// and b_t the sum of the log-decays of the chunk's rows on the row's path up to itself, the gated delta
// rule (arXiv 2412.06464) of a row t is, q, k and v its query, key and value,
//   d_t = rate_t (v_t - e^b_t S0^T k_t - sum over s < t of e^(b_t - b_s) (k_s . k_t) d_s)
//   o_t = e^b_t S0^T q_t + sum over s <= t of e^(b_t - b_s) (k_s . q_t) d_s
// and S at the end of a chunk is e^b_last S0 + sum over s of e^(b_last - b_s) k_s d_s^T. Mamba-2
// (arXiv 2405.21060) is the same with d_t = rate_t v_t, and adds skip v_t to o_t. Sums over rows and
// over key dimensions are in ascending order, so a row has the same bits whoever computes it, in a
// prompt, alone or in a tree. Until the chunk ends, its rows lie beside S like keys and values.

#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

enum class MixerKind : std::uint8_t { None, Delta, Mamba2, Conv };

struct MixerShape {
    MixerKind kind = MixerKind::None;
    int num_heads = 0, num_key_heads = 0, key_dim = 0, value_dim = 0;
    int num_channels = 0, num_taps = 0;  // of the convolution
    bool is_tiled = false;               // heads h, h + key heads, ... share keys; else neighbours do
    bool has_bias = false;               // of the convolution
    float least_step = 0.0f, most_step = 0.0f;

    bool exists() const { return kind != MixerKind::None; }
    bool has_heads() const { return num_heads > 0; }
    int key_width() const { return num_key_heads * key_dim; }
    int value_width() const { return num_heads * value_dim; }
    int key_head(int head) const {
        return is_tiled ? head % num_key_heads : head / (num_heads / num_key_heads);
    }
    bool operator==(const MixerShape&) const = default;
};

// Of one row, for channels from the pointers' on: what is convolved of it and of the rows before it,
// oldest first, with weights (num_taps, stride).
struct Convolution {
    const float* const* rows = nullptr;
    const float* weights = nullptr;
    const float* bias = nullptr;  // may be null
    std::size_t stride = 0;
    int num_taps = 0;
    bool is_activated = false;  // by silu
};

inline constexpr int kMostTaps = 16;
inline constexpr int kStateRows = 16;  // most rows of one call of `recur`

// A row and one of its heads.
struct RecurrentRow {
    const float *key = nullptr, *query = nullptr, *value = nullptr;
    const float *key_scores = nullptr, *query_scores = nullptr;  // by row of the slot: k_s . k, k_s . q
    float log_decay = 0.0f, rate = 0.0f;
    const std::int32_t* path = nullptr;  // the chunk's rows of the slot up to the row itself
    int length = 0;                      // of it
    float* out = nullptr;                // (value dim)
};

// A head of some rows, parents before children, whose chunk begins with the same state.
struct Recurrence {
    const float* state = nullptr;  // (key dim, value dim)
    int key_dim = 0, value_dim = 0;
    const RecurrentRow* rows = nullptr;
    int num_rows = 0;
    bool is_delta = false;  // else Mamba-2, without keys of the rows
    float skip = 0.0f;
    float *changes = nullptr, *decays = nullptr;  // d (rows of the slot, value dim), b (rows of the slot)
    float* scratch = nullptr;                     // (2 num_rows, value dim)
};

// A head's state at the end of a chunk, from that at its beginning and what the 64 rows of a path left.
struct StateChange {
    const float* state = nullptr;  // (key dim, value dim)
    float* to = nullptr;           // may be `state`
    int key_dim = 0, value_dim = 0;
    const float* keys = nullptr;                        // (rows of the slot / 16, key dim, 16)
    const float *changes = nullptr, *decays = nullptr;  // as above
    const std::int32_t* path = nullptr;                 // (64) rows of the slot
};

}  // namespace forerun
