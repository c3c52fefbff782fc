// A decoder as the kernels see it: packed weights, the buffers of a pass, and one call that
// computes a pass.
//
// A pass is a fixed row of phases a layer, each cut into pieces for the pool's threads:
//   q, k, v (rotated, keys and values into the cache) -> attention -> output projection -> gate and up -> down,
//   and the same of each row's experts
// The norms between them are done by the thread that ends a phase where rows are few, else they are phases too.
// Layers with a recurrent state have other phases in attention's place (mixer.cpp).
// How a phase is cut never changes a sum, so the number of threads changes nothing.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/cache.h"
#include "model/head.h"
#include "model/layer.h"
#include "model/pass.h"
#include "model/ranks.h"
#include "model/runtime.h"
#include "model/shape.h"
#include "model/types.h"

namespace forerun {

class Decoder {
  public:
    // `weights` are all that the shape asks for, with their sizes, which are not checked against it: model/shapes.py
    // has them. A tied head may be left out. Throws std::invalid_argument for a name without a place.
    Decoder(Runtime& runtime, const Shape& shape, const WeightShapes& weights);
    // Layers and the norm behind them, whose weights somebody else holds: rows are given and hidden states are taken.
    Decoder(Runtime& runtime, const Shape& shape, std::vector<Layer> layers, const Norm& norm);
    ~Decoder();
    Decoder(const Decoder&) = delete;
    Decoder& operator=(const Decoder&) = delete;

    // Weights by canonical name ("layers.0.q", "norm", ...). Throw std::invalid_argument for a name
    // that this model has not, or another shape than it needs.
    void set(const std::string& name, Packed packed);
    void set_norm(const std::string& name, std::span<const float> weight,
                  std::span<const float> bias);
    // How a layer attends: to `window` positions, 0 for all; rotated by `frequencies`, the radians
    // that a position adds to each pair's angle, with cos and sin multiplied by `factor`.
    void set_attention(int layer, int window, std::span<const float> frequencies, float factor);
    // Makes this the part of a model that rank `ranks.rank()` holds: heads and MLPs are its own, and what
    // sublayers add are partial sums. Rows begin at rank 0, the others need no embedding. Throws
    // std::invalid_argument for a model whose layers cannot be cut.
    void set_ranks(Ranks& ranks);
    // Throws std::invalid_argument naming a weight that is missing.
    void check();
    // A weight that was set; a norm's `linear` has no format.
    const Packed& packed(const std::string& name) const;

    // What passes start from, (R, D): rows of the embedding, without positions.
    void embed(std::span<const std::int64_t> ids, float* rows);
    // One token's embedding (D,); the caller holds a `PassLock`.
    void embed_row(std::int64_t id, float* x) const;
    // Final hidden states (R, D) of all segments' rows; `aux` (layers, R, D) the outputs of
    // `aux_layers`, ascending. `inputs` (R, D) takes the place of the tokens' embeddings unless null.
    void forward(Cache& cache, std::span<const Segment> segments, const float* inputs,
                 float* hidden, std::span<const int> aux_layers, float* aux);
    // The same for who holds a `PassLock`.
    void pass(Cache& cache, std::span<const Segment> segments, const Inputs& inputs, float* hidden,
              std::span<const int> aux_layers = {}, float* aux = nullptr);
    // Writes keys and values of rows alone, which k and v of every layer make of the same `rows`, as wide as they read.
    // The caller holds a `PassLock`. For layers of attention that keep their own.
    void write_kv(Cache& cache, std::span<const Segment> segments, const float* rows);
    // What reads final hidden states. Throws like `check`.
    Head& head();

    // One linear layer on rows (num_rows, in), to (num_rows, outputs in whole tiles): what tests
    // compare with references.
    void apply(const Linear& linear, const float* x, int num_rows, float* out);

    // The pieces of each phase of a pass, which is not computed and needs no weights.
    std::vector<int> phases(Cache& cache, std::span<const Segment> segments);

    std::size_t nbytes() const;
    // Bytes of scratch memory that a pass of `num_rows` rows takes, or one of so few that threads share a row's keys in
    // the full context of `cache`, or the head of `head_rows`: the most. Drafts have `num_nodes` nodes.
    std::size_t scratch_nbytes(Cache& cache, int num_rows, int num_nodes, int head_rows);
    // Of them, what attention takes at most for threads to share a row's keys, whatever the rows and the context.
    std::size_t attention_nbytes(const Cache& cache);
    const Shape& shape() const { return shape_; }
    int num_threads() const { return pool_.size(); }
    const Kernels& kernels() const { return kernels_; }

  private:
    Weight& find(const std::string& name);
    void place_weights(const WeightShapes& weights);
    Weight place_of(std::string_view name, const WeightShape& shape);
    void check_mixers() const;
    void check_latent() const;
    void check_streams() const;
    void check_flat() const;
    void check_id(std::int64_t id) const;
    bool quantizes_after_attention(int layer) const;
    void quantize_row(const Linear& reader, const Rows& rows, int row) const;
    bool attends_by_row() const { return shape_.qk_norm == QkNorm::Whole; }
    const ExpertsShape& experts_of(int layer) const { return shape_.layers[layer].experts; }
    const LayerShape& layer_shape(int layer) const { return shape_.layers[layer]; }
    const MixerShape& mixer_of(int layer) const { return shape_.layers[layer].mixer; }
    int head_dim(int layer) const { return layer_shape(layer).kv.head_dim; }
    int value_dim(int layer) const { return layer_shape(layer).kv.value_dim; }
    int kv_layer(int layer) const;
    bool has_mixers() const {
        return std::ranges::any_of(shape_.layers,
                                   [](const LayerShape& layer) { return layer.mixer.exists(); });
    }
    // From a row of queries, keys and values to the next.
    std::size_t qkv_stride(int layer) const;
    // Where a row's gate of attention lies there.
    int gate_column(int layer) const;
    int channel_units(const Mlp& mlp) const;
    int num_pairs(int layer) const { return num_rows_ * experts_of(layer).num_active; }

    void begin_pass(Cache& cache, std::span<const Segment> segments, const Inputs& inputs);
    void check_segments() const;
    void check_states() const;
    void check_state(const Segment& segment) const;
    void plan();
    void plan_rows(const Segment& segment);
    void plan_attention(AttentionKind& kind);
    void cut_units(AttentionKind& kind, int heads, int rows);
    void cut_tasks(AttentionKind& kind);
    // Query heads of one kv head, and rows, that attend together at most.
    std::pair<int, int> pairs_of(const AttentionKind& kind) const {
        const int heads = std::min(shape_.num_heads / kind.kv.num_heads, kMaxPairs);
        return {heads, kMaxPairs / heads};
    }
    // Of so many units or more none is split, and of those whose tasks leave more states than this.
    int most_split_units() const { return 4 * pool_.size(); }
    static std::size_t state_nbytes(const AttentionKind& kind) {
        return sizeof(Attended) + kind.kv.head_dim * sizeof(float);
    }
    std::size_t most_states(const AttentionKind& kind) const {
        return (8'000'000 + std::size_t{50'000} * pool_.size()) / state_nbytes(kind);
    }
    std::pair<int, std::size_t> most_split(const Cache& cache, const AttentionKind& kind) const;
    // Scratch of a thread: scores and states of a unit whose rows see so many others of the pass.
    std::size_t attention_floats(std::size_t above) const {
        return kMaxPairs * (kChunk + above + 2 * static_cast<std::size_t>(most_dim_));
    }
    void plan_mixers();
    void plan_mixer_row(int segment, int known, int node);
    void plan_phases();
    void add_phases(std::initializer_list<int> pieces);
    void plan_layer(int layer);
    void plan_end(int pieces);
    void plan_streams();
    int num_active() const;
    void lay_out_experts(Scratch& scratch);
    void lay_out_latent(Scratch& scratch);
    void lay_out_streams(Scratch& scratch);
    std::size_t lay_out_mixers(Scratch& scratch);
    void lay_out(Scratch& scratch, int rows_above, std::size_t num_states);

    void run(Worker& worker);
    void run_layer(Worker& worker, int layer);
    void begin_layer(int layer, int row);
    void begin_mlp(int layer, int row);
    void rows_began(int layer);
    // The phases of a sublayer's last product: its pieces, then of each row what the next one reads, then `finish`.
    template <class Piece, class Row, class Finish>
    void end_sublayer(Worker& worker, Piece piece, Row row, Finish finish) {
        if (!ranks_) return worker.each_and_rows(piece, num_rows_, row, finish);
        worker.each(piece);
        worker.each_and_rows([&](int) { all_reduce(); }, num_rows_, row, finish);
    }
    template <class Piece, class Row>
    void end_sublayer(Worker& worker, Piece piece, Row row) {
        end_sublayer(worker, piece, row, [] {});
    }
    void enter(int row, int sublayer);
    void start(int row, float* x);
    void all_reduce();
    void add_parts(int row);
    void quantize(const Linear& reader, const float* x, const Rows& rows, int row, int column,
                  int count) const;
    void put(const Linear& reader, const float* x, const Rows& rows, int row, int column,
             int count) const;
    void norm(int row, const Norm& norm, std::span<const Linear* const> readers);
    void hand_normed(int row, std::span<const Linear* const> readers) { hand(normed_, row, readers); }
    void hand(const Rows& rows, int row, std::span<const Linear* const> readers) const;
    // What q, k and v read.
    const Rows& attention_input() const { return shape_.attention_width > 0 ? attention_input_ : normed_; }
    void take_attention_input(int row);
    void write_kv_phases(Worker& worker);
    void norm_head(const Norm& norm, int head, int dim, float* x) const;
    void add_sublayer(int row, int sublayer);
    void add_mlp(int row, const Layer& layer);
    void add_normed(int row, const Norm& norm, const float* from);
    void run_attention(Worker& worker, int layer);
    void end_attention(Worker& worker, int layer);
    int num_projected_heads(int layer) const;
    int projected_pieces(int layer) const;
    void project(int layer, int piece);
    void project_head(int layer, int head, const Part& tiles);
    void norm_heads(int layer, int row);
    void place_head(int layer, int head, int row);
    void write_value(int layer, int head, int row, float* x);
    void code_query(int layer, int row, int head, const float* x);
    void attend(Worker& worker, int layer);
    void attend_task(int task, int layer, int thread);
    Attended* merge_tasks(const AttentionKind& kind, const AttentionUnit& unit, int layer);
    void finish_query(const AttentionUnit& unit, int query, int layer, Attended* states);
    void add_linear(const Linear& linear, const Rows& rows, int piece);
    Output residual(int tile) const;

    std::size_t latent_stride() const;
    std::vector<int> latent_pieces(int layer) const;
    int latent_rows() const { return padded_rows(num_rows_); }
    void run_latent(Worker& worker, int layer);
    void project_latents(int layer, const Part& tiles);
    void project_queries(int layer, const Part& tiles, int first_tile, const Rows& from);
    void make_query_input(int layer, int row);
    void place_latent(int layer, int row);
    void absorb_head(int layer, int head);
    void finish_latent(const AttentionUnit& unit, int row, int layer, Attended* states);
    void read_head(int layer, int head);

    std::size_t mixer_stride(int layer) const;
    int row_parts(int units) const;
    int mixed_units(int layer) const;
    int gated_units(int layer) const;
    int projected_tiles(int layer) const;
    std::vector<int> mixer_pieces(int layer) const;
    void run_mixer(Worker& worker, int layer);
    void project_parts(int layer, const Part& tiles);
    struct Columns {
        const Linear* linear;
        int first;  // of its outputs in a projected row
    };
    int project(std::span<const Columns> parts, const Part& tiles, std::size_t stride);
    void project_gated(int layer, const Part& tiles);
    void convolve(int layer, int row, int channel, int count, float* out);
    void mix_row(int layer, int row, const Part& units);
    void mix_key(int layer, int row, int head);
    void mix_value(int layer, int row, int head);
    void score_keys(int layer, const MixerUnit& unit, int head);
    float* scores_of(int layer, int row, int head) const;
    void recur_head(int layer, int segment, int head, int thread);
    void recur_rows(int layer, int segment, int head, int border, Recurrence& r);
    void gate_row(int layer, int row, const Part& units);

    void run_inputs(Worker& worker);
    void mix_inputs(int row, int thread);
    void begin_inputs(int layer, int row);
    void run_per_layer(Worker& worker, int layer);
    void gate_inputs(int layer, int piece, int thread);
    // Groups of outputs of a narrow layer, changed by `change(row, column, x)`, as the layer that reads them needs.
    template <class Change>
    void put_groups(const Linear& linear, const Linear& reader, const Rows& rows, const Part& groups, int thread,
                    const Change& change) {
        const Rows out = rows.of(reader);
        float* block = scratch_ + thread * scratch_stride_;
        for (int column = groups.first * kGroup; column < groups.stop * kGroup; column += kGroup)
            for (int first = 0; first < num_rows_; first += kRowBlock) {
                const int count = std::min(kRowBlock, num_rows_ - first);
                kernels_.linear(linear, column / kTile, kGroup / kTile, normed_, first, count,
                                {block, static_cast<std::size_t>(kGroup)});
                for (int i = 0; i < count; ++i) {
                    float* x = block + i * kGroup;
                    change(first + i, column, x);
                    put(reader, x, out, first + i, column, kGroup);
                }
            }
    }

    void run_streams(Worker& worker);
    float* stream(int row, int index) const;
    int stream_pieces() const;
    int laurel_pieces(int units) const { return std::min(4 * pool_.size(), units); }
    int stream_places() const { return padded_rows(num_rows_); }
    void project_streams(int piece);
    void begin_streams(int row);
    void route_streams(const Layer& layer, int row, float* routed);
    void mix_routed(const Norm& matrix, const float* routed, int count, float* out) const;
    void predict_streams(const Layer& layer, int row);
    void run_laurel(Worker& worker, const Layer& layer);
    void add_laurel(const Layer& layer, int row);
    void correct_streams(const Layer& layer, int row);
    void add_to_streams(int row, int sublayer);
    void end_streams(Worker& worker);
    void unembed_streams(int piece);
    void join_streams(int row);

    void run_mlp(Worker& worker, int layer);
    void gate_mlp(int layer, int row);
    void gate_alone(const Mlp& mlp, int piece);
    void find_cutoff(const Mlp& mlp, int row);
    void take_gates(const Mlp& mlp, int first, int count, int column, int channels, float* gate) const;
    void mlp_up(const Layer& layer, int piece, int thread);
    void gate_up(const Mlp& mlp, const Part& part, int column, const Rows& in, int first, int stop, const Rows& out,
                 int thread, const float* shares = nullptr);
    void choose_experts(int layer, int row);
    void weigh_experts(int layer, const float* scores, float largest, const int* chosen, float* weights);
    void place_pairs(int layer);
    void gather_pair(int layer, int pair);
    void experts_up(int layer, int piece, int thread);
    void experts_down(int layer, int piece, int thread);

    const Shape shape_;
    Runtime& runtime_;
    const Kernels& kernels_;
    Pool& pool_;
    std::map<std::string, Weight> weights_;
    std::vector<Layer> layers_;
    Linear embed_, positions_, head_, per_layer_embed_, per_layer_proj_, altup_proj_, altup_unembed_;
    Norm final_norm_, per_layer_norm_;
    Head reads_hidden_;  // with `head_`, or the embedding
    bool is_checked_ = false;
    std::size_t layers_nbytes_ = 0;
    Ranks* ranks_ = nullptr;  // null: the model is whole
    std::vector<AttentionKind> kinds_;
    int most_dim_ = 0;  // widest head
    std::vector<float> zeros_, ones_;  // (E): a sink's value, and the weight of a norm without one

    // The pass. Vectors are reused, grown when a larger one comes.
    Cache* cache_ = nullptr;
    std::span<const Segment> segments_;
    std::span<const int> aux_layers_;
    Inputs inputs_;
    float *aux_ = nullptr, *hidden_ = nullptr;
    int num_rows_ = 0;
    std::vector<int> tokens_, row_segment_, cache_rows_;
    std::vector<Query> queries_;  // without a window
    std::vector<float> query_scales_;
    std::vector<std::int32_t> paths_;
    std::vector<int> depths_;
    std::vector<int> phases_;
    // Of a phase: tiles of each head, and tasks of each unit, that are done.
    struct alignas(64) Counter {
        std::atomic<int> num_done{0};
    };
    std::vector<Counter> heads_, units_;
    std::int64_t process_ = platform::process();
    std::vector<MixerRow> mixer_rows_;  // none without recurrent layers
    std::vector<std::int32_t> mixer_paths_;
    std::vector<MixerUnit> mixer_units_;
    std::vector<ChunkBorder> borders_;

    // In the runtime's scratch memory.
    float *x_ = nullptr, *qkv_ = nullptr;
    float* added_ = nullptr;  // (R, D), by a sublayer, to be normed; null without such norms
    float* experts_added_ = nullptr;  // (R, D), by experts with norms
    float* experts_input_ = nullptr;  // (R, D), normed for them
    float* inputs_of_layers_ = nullptr;  // (R, layers, width)
    Rows normed_, attention_input_, attended_, activated_, gated_inputs_;
    float *streams_ = nullptr, *laurel_ = nullptr;  // (R, streams, D), (R, D)
    Rows laurel_input_, stream_rows_;               // (R, rank), (streams - 1, R in whole groups)
    float *gates_ = nullptr, *cutoffs_ = nullptr;   // of sparse MLPs: (R, inner), (R)
    float* convolved_ = nullptr;  // (R, channels)
    float* scores_ = nullptr;     // of keys: scores_of
    float* mlp_gates_ = nullptr;  // (R)
    Routing routing_;
    float* router_logits_ = nullptr;  // (R, experts in whole tiles)
    int router_stride_ = 0;
    Rows query_input_;               // (R, query rank): what queries are made of
    Rows head_queries_, head_read_;  // (H, R in whole groups): what a head's matrices read
    Rows gathered_, expert_rows_;  // by slot: what experts read, and their activations
    CodedQueries coded_;  // if the cache holds codes
    float* scratch_ = nullptr;  // (threads, scratch_stride_)
    std::size_t scratch_stride_ = 0;
    Attended* states_ = nullptr;
};

}  // namespace forerun
