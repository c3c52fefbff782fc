// A decoder as the kernels see it: packed weights, the buffers of a pass, and one call that
// computes a pass.
//
// A pass is a fixed row of phases a layer, each cut into pieces for the pool's threads:
//   norm -> q, k, v (rotated, keys and values into the cache) -> attention -> output projection ->
//   norm -> gate and up -> down
// How a phase is cut never changes a sum, so the number of threads changes nothing.

#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cache.h"
#include "memory.h"
#include "pack.h"
#include "pool.h"
#include "types.h"

namespace forerun {

struct Shape {
    int vocab_size, hidden_size, intermediate_size, num_layers, num_heads, num_kv_heads, head_dim,
        max_position;
    Activation activation = Activation::Silu;
    bool is_gated = true;
    int sliding_window = 0;    // 0: none
    int position_offset = -1;  // row of the position table that position 0 reads; -1: no table
    float embedding_multiplier = 1.0f, residual_multiplier = 1.0f, attention_scale = 1.0f,
          logits_divisor = 1.0f;
};

struct NormWeights {
    Norm norm;
    Buffer weight, bias;
};

struct Layer {
    NormWeights attn_norm, mlp_norm, q_norm,
        k_norm;  // q_norm and k_norm: weight null if there are none
    Packed q, k, v, o, gate, up, down;
};

// The largest of some logits and its first id; id -1 once a NaN was seen.
struct Best {
    float value = -__builtin_huge_valf();
    std::int32_t id = 0;

    void see(const float* logits, int first_id, int count);
    void see(const Best& other);
};

// The block of logits that the head holds aside.
inline constexpr int kHeadTiles = 8, kHeadRows = 64;

// Rows of one sequence's tree, as core.batch.Segment.
struct Segment {
    int slot, base, first, stop;
    std::vector<int> tokens, parents;  // parents empty: a chain
};

class Decoder {
  public:
    Decoder(const Shape& shape, const Kernels& kernels, int num_threads);

    // Weights by canonical name ("q", "attn_norm", ..., layer -1 for those outside layers). Throw
    // std::invalid_argument.
    void set_linear(int layer, const std::string& name, Stored type, int num_out, int num_in,
                    const std::uint8_t* rows, const float* bias);
    // A linear layer's own memory, blank, for its packed weights to be read into.
    void add_blank(int layer, const std::string& name, WeightFormat format, int num_out, int num_in,
                   bool has_bias);
    void set_norm(int layer, const std::string& name, std::span<const float> weight,
                  std::span<const float> bias, float eps, bool is_layer);
    // Radians a position adds to each pair's angle; cos and sin are multiplied by `factor`.
    void set_rope(std::span<const float> frequencies, float factor);
    // Throws std::invalid_argument naming a weight that is missing or has the wrong shape.
    void check() const;

    // Final hidden states (R, D) of all segments' rows; `taps` (num taps, R, D) the outputs of the
    // asked layers, ascending. Only `sublayers` are run, ascending: 2 i is the attention of layer i,
    // 2 i + 1 its MLP.
    void forward(Cache& cache, std::span<const Segment> segments, float* hidden,
                 std::span<const int> tap_layers, float* taps, std::span<const int> sublayers);
    void head(const float* hidden, int num_rows, float* logits);
    // The likeliest token of each row, lowest id among equals, without writing logits; -1 for a row
    // with NaN.
    void argmax(const float* hidden, int num_rows, std::int64_t* ids);

    // One linear layer on rows (num_rows, in), to (num_rows, outputs in whole tiles): what tests
    // compare with references.
    void apply(const Linear& linear, const float* x, int num_rows, float* out) const;

    std::size_t nbytes() const;
    const Shape& shape() const { return shape_; }
    const Linear& linear(int layer, const std::string& name) const {
        return packed(layer, name).linear;
    }
    const Packed& packed(int layer, const std::string& name) const;
    Pool& pool() { return pool_; }
    const Kernels& kernels() const { return kernels_; }

  private:
    struct RowsMemory {
        Rows rows;
        Buffer memory;
    };
    struct Unit {  // rows of one segment and query heads of one kv head that attend together
        int segment, query, num_queries, kv_head, head, num_heads, first_chunk, stop_chunk;
    };
    struct Task {  // chunks of a unit that one thread works through
        int unit, first_chunk, stop_chunk;
    };

    struct HeadCall {
        const float* hidden;
        int num_rows;
        float* logits;  // null: only the likeliest is asked for
    };

    Packed& find(int layer, const std::string& name);
    const Linear& head_weights() const;
    bool quantizes_after_attention(const Layer& layer) const;
    int mlp_units() const;

    void check_segments(const Cache& cache, std::span<const Segment> segments) const;
    void plan(std::span<const Segment> segments);
    void plan_rows(const Segment& segment);
    void plan_rope();
    void plan_attention(std::span<const Segment> segments);
    void plan_phases();
    void reserve(int num_rows, int rows_above);
    RowsMemory make_rows(int num_rows, int width) const;

    void run(Worker& worker);
    void enter(int row, int sublayer);
    void embed(int row);
    void take_tap(int row, int layer);
    void norm(int row, const NormWeights& weights, std::initializer_list<const Linear*> readers);
    void project_head(int layer, int head);
    void place_head(int layer, int head, int row);
    void attend(Worker& worker, int layer);
    void attend_task(const Task& task, int layer, float* scratch, Attended* states);
    void merge_tasks(int unit);
    void finish_unit(const Unit& unit, const Attended* states);
    void mlp_up(const Layer& layer, int piece, int thread);
    void mlp_block(const Layer& layer, int tile, int tiles, int first, int count, int thread);
    void add_linear(const Linear& linear, const Rows& rows, int piece);

    void run_head(const HeadCall& call);
    void run_head_phases(Worker& worker);
    void head_tiles(int thread, int tile, int num_tiles);

    const Shape shape_;
    const Kernels& kernels_;
    std::vector<Layer> layers_;
    Packed embed_, positions_, head_;
    NormWeights final_norm_;
    std::vector<float> frequencies_;
    float rope_factor_ = 1.0f;

    // The pass: reused, grown when a larger one comes.
    Cache* cache_ = nullptr;
    std::span<const Segment> segments_;
    std::span<const int> tap_layers_, sublayers_;
    float *taps_ = nullptr, *hidden_ = nullptr;
    int num_rows_ = 0, capacity_ = 0;
    std::size_t scratch_stride_ = 0;
    std::vector<int> tokens_, row_segment_, cache_rows_;
    std::vector<Query> queries_;
    std::vector<std::int32_t> paths_;
    std::vector<int> depths_;
    std::vector<Unit> units_;
    std::vector<Task> tasks_;
    std::vector<int> phases_;
    std::vector<Attended> states_;
    bool is_split_ = false;
    Buffer x_, qkv_, scratch_, partial_;
    RowsMemory normed_, attended_, activated_;
    std::vector<float> cos_, sin_;
    Rope rope_;
    HeadCall head_call_{};
    Buffer best_;

    std::mutex busy_;  // one pass at a time
    Pool pool_;        // last: its threads are gone before what they look at
};

}  // namespace forerun
