// The plan of a pass: rows, positions, paths, how attention and the phases are cut, and the room it
// all needs.

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/math.h"
#include "model/model.h"

namespace forerun {

void Decoder::check_segments() const {
    const Cache& cache = *cache_;
    const auto stored = [](const LayerShape& layer) {
        const bool has_none = layer.shares_kv_of >= 0 || layer.mixer.exists() || !layer.has_mixer;
        return KvShape{has_none ? 0 : layer.kv.num_heads, layer.kv.head_dim, layer.kv.value_dim};
    };
    const auto lends = [&](const LayerShape& layer) {
        return static_cast<std::size_t>(layer.shares_kv_of) < cache.layers.size() &&
               cache.layers[layer.shares_kv_of] == layer.kv;
    };
    const bool fits = shape_.borrows_kv
                          ? std::ranges::all_of(shape_.layers, lends)
                          : std::ranges::equal(cache.layers, shape_.layers, {}, {}, stored);
    if (!fits) throw std::invalid_argument("the cache was made for another model");
    if (!shape_.borrows_kv) check_states();
    for (const Segment& s : segments_) {
        const int count = static_cast<int>(s.tokens.size());
        cache.check_slot(s.slot);
        for (const Segment* other = segments_.data(); other != &s; ++other)
            if (other->slot == s.slot)
                throw std::invalid_argument("two segments of one cache slot");
        if (s.base < 0 || s.first < 0 || s.stop < s.first || s.stop > count)
            throw std::invalid_argument("a segment's rows lie outside its tokens");
        if (shape_.borrows_kv && s.base == 0)
            throw std::invalid_argument("a row that does not see itself needs one before it");
        const int own = shape_.borrows_kv ? 0 : s.stop;  // rows that will be written
        if (own > cache.max_len - s.base || !cache.has_rows(s.slot, s.base + own))
            throw std::out_of_range("the sequence does not fit the cache");
        check_state(s);
        if (!inputs_.states || shape_.per_layer_width > 0)
            for (int token : s.tokens) check_id(token);
        if (!s.parents.empty() && static_cast<int>(s.parents.size()) != count)
            throw std::invalid_argument("a parent is needed for every token");
        for (int i = 0; i < static_cast<int>(s.parents.size()); ++i)
            if (s.parents[i] < -1 || s.parents[i] >= i)
                throw std::invalid_argument("parents must come before their children");
    }
}

// Recurrent layers, if there are any, are those of the cache.
void Decoder::check_states() const {
    const std::vector<MixerShape>& stored = cache_->states.layers;
    const bool is_alike = stored.empty() ? !has_mixers()
                                         : std::ranges::equal(stored, shape_.layers, {}, {}, &LayerShape::mixer);
    if (!is_alike) throw std::invalid_argument("the cache's states were made for another model");
}

// The rows since a slot's state reach up to those of this pass, and have room for them.
void Decoder::check_state(const Segment& segment) const {
    const States& states = cache_->states;
    if (!has_mixers()) return;
    if (!states.is_placed(segment.slot) || segment.base + segment.first < states.rows_before(segment.slot))
        throw std::invalid_argument("the slot has no recurrent state of rows before these");
    states.check_room(segment.slot, segment.base + segment.stop);
}

// Tokens, positions and paths of one segment's rows.
void Decoder::plan_rows(const Segment& s) {
    const bool is_tree = !s.parents.empty();
    depths_.resize(s.stop);
    for (int i = 0; i < s.stop; ++i) {
        const int parent = is_tree ? s.parents[i] : i - 1;
        depths_[i] = parent < 0 ? 0 : depths_[parent] + 1;
        if (i < s.first) continue;
        queries_.push_back({static_cast<int>(tokens_.size()), s.base + depths_[i], 0, s.base});
        tokens_.push_back(s.tokens[i]);
        cache_rows_.push_back(s.base + i);
        if (!is_tree) continue;
        const std::size_t start = paths_.size();
        for (int node = i; node >= 0; node = s.parents[node]) paths_.push_back(s.base + node);
        std::reverse(paths_.begin() + static_cast<std::ptrdiff_t>(start), paths_.end());
    }
}

void Decoder::plan() {
    tokens_.clear();
    queries_.clear();
    paths_.clear();
    cache_rows_.clear();
    row_segment_.clear();
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        plan_rows(segments_[i]);
        row_segment_.resize(tokens_.size(), static_cast<int>(i));
    }
    num_rows_ = static_cast<int>(tokens_.size());
    const std::int32_t* path = paths_.data();
    for (Query& query : queries_) {
        if (query.position >= shape_.max_position ||
            (positions_.tiles && query.position + shape_.position_offset >= positions_.num_out))
            throw std::out_of_range("a position lies beyond the model's context");
        if (segments_[row_segment_[query.row]].parents.empty()) continue;
        query.path = path;
        path += query.position - query.base + 1;
    }
    query_scales_.clear();
    for (const Query& query : queries_) {
        const auto times = static_cast<float>(query.position / shape_.query_growth_every);
        const float growth = 1.0f + shape_.query_growth * ieee::log1p(times);
        query_scales_.push_back(shape_.attention_scale * growth);
    }
    for (AttentionKind& kind : kinds_) plan_attention(kind);
    plan_mixers();
}

// Rotations and windows of layers of a kind, and how their attention is cut: pairs of a row and a head attend together,
// since they read the same keys, as many as leave a task for each thread.
void Decoder::plan_attention(AttentionKind& kind) {
    kind.cos.clear();
    kind.sin.clear();
    for (const Query& query : queries_)
        for (float frequency : kind.frequencies) {
            const auto [cos, sin] = ieee::turn(static_cast<float>(query.position) * frequency);
            kind.cos.push_back(cos * kind.factor);
            kind.sin.push_back(sin * kind.factor);
        }
    kind.rope = {kind.cos.data(), kind.sin.data(), static_cast<int>(kind.frequencies.size())};
    kind.queries = queries_;
    for (Query& query : kind.queries) {
        const int seen_from = shape_.fills_blocks ? query.base : query.position + 1;
        if (kind.window > 0) query.first = std::max(0, seen_from - kind.window);
        if (kind.is_bidirectional) query.position = query.base + segments_[row_segment_[query.row]].stop - 1;
        if (!shape_.borrows_kv) continue;
        query.position = query.base - 1;
        query.first = std::min(query.first, query.position);  // a row sees one key at least
        query.path = nullptr;
    }
    const int threads = pool_.size();
    auto [heads, rows] = pairs_of(kind);
    for (rows = std::clamp(num_rows_, 1, rows);; --(rows > 1 ? rows : heads)) {
        cut_units(kind, heads, rows);
        cut_tasks(kind);
        if (static_cast<int>(kind.tasks.size()) >= threads || heads * rows == 1) return;
    }
}

// Rows and heads of a segment that attend together: `heads` of one kv head, `rows` rows at most.
void Decoder::cut_units(AttentionKind& kind, int heads, int rows) {
    const int group = shape_.num_heads / kind.kv.num_heads;
    int query = 0;
    kind.units.clear();
    kind.unit_pairs = heads * rows;
    for (std::size_t i = 0; i < segments_.size(); ++i) {
        const int stop = query + segments_[i].stop - segments_[i].first;
        for (; query < stop; query += std::min(rows, stop - query)) {
            const int count = std::min(rows, stop - query);
            int first = kind.queries[query].first, last = 0;
            for (int j = query; j < query + count; ++j) {
                first = std::min(first, kind.queries[j].first);
                last = std::max(last, kind.queries[j].position);
            }
            const int first_chunk = first / kChunk, stop_chunk = last / kChunk + 1;
            for (int kv = 0; kv < kind.kv.num_heads; ++kv)
                for (int h = kv * group; h < (kv + 1) * group; h += heads)
                    kind.units.push_back({static_cast<int>(i), query, count, kv, h,
                                          std::min(heads, (kv + 1) * group - h), first_chunk,
                                          stop_chunk, 0, 0});
        }
    }
}

// A unit's chunks are one task, or a task for each run of them where there are too few units to go round.
void Decoder::cut_tasks(AttentionKind& kind) {
    const int num_units = static_cast<int>(kind.units.size());
    std::size_t num_runs = 0;
    for (const AttentionUnit& unit : kind.units)
        for (int chunk = unit.first_chunk; chunk < unit.stop_chunk; chunk = run_stop(chunk)) ++num_runs;
    kind.is_split = pool_.size() > 1 && num_units < most_split_units() && num_runs > kind.units.size() &&
                    num_runs * kind.unit_pairs <= most_states(kind);
    kind.tasks.clear();
    for (int i = 0; i < num_units; ++i) {
        AttentionUnit& unit = kind.units[i];
        unit.first_task = static_cast<int>(kind.tasks.size());
        for (int chunk = unit.first_chunk, stop; chunk < unit.stop_chunk; chunk = stop) {
            stop = kind.is_split ? std::min(run_stop(chunk), unit.stop_chunk) : unit.stop_chunk;
            kind.tasks.push_back({i, chunk, stop});
        }
        unit.stop_task = static_cast<int>(kind.tasks.size());
    }
}

// Where the pass keeps its rows, each thread its scratch, and tasks of attention the `num_states` that they leave.
void Decoder::lay_out(Scratch& scratch, int rows_above, std::size_t num_states) {
    const Shape& s = shape_;
    const std::size_t rows = num_rows_, threads = pool_.size();
    const std::size_t dim = most_dim_;
    x_ = scratch.take<float>(rows * s.hidden_size);
    added_ = s.norms_after ? scratch.take<float>(rows * s.hidden_size) : nullptr;
    const std::size_t coded = cache_->has_codes() ? rows * s.num_heads : 0;
    coded_ = {scratch.take<std::int8_t>(coded * dim), scratch.take<float>(coded),
              scratch.take<std::int32_t>(coded * key_groups(static_cast<int>(dim)))};
    int normed = 0, attended = 0, activated = 0;  // widest
    std::size_t projected = 0, gated = 0;
    for (int i = 0; i < s.num_layers; ++i) {
        const Layer& layer = layers_[i];
        projected = std::max(projected, mixer_of(i).exists() ? mixer_stride(i) : qkv_stride(i));
        if (s.attention_width == 0) normed = std::max(normed, layer.q.num_in);
        normed = std::max({normed, layer.in_proj.num_in, layer.mlp.up.num_in});
        attended = std::max(attended, layer.o.num_in);
        activated = std::max(activated, layer.mlp.down.num_in);
        if (layer.mlp.has_sparse_activation) gated = std::max<std::size_t>(gated, layer.mlp.inner);
    }
    normed_ = scratch.take_rows(num_rows_, s.hidden_size, normed);
    attention_input_ = scratch.take_rows(s.attention_width > 0 ? num_rows_ : 0, s.attention_width);
    qkv_ = scratch.take<float>(rows * projected);
    attended_ = scratch.take_rows(num_rows_, attended);
    activated_ = scratch.take_rows(num_rows_, activated);
    gates_ = scratch.take<float>(rows * gated);
    cutoffs_ = scratch.take<float>(gated > 0 ? rows : 0);
    inputs_of_layers_ = scratch.take<float>(rows * s.num_layers * s.per_layer_width);
    gated_inputs_ = scratch.take_rows(s.per_layer_width > 0 ? num_rows_ : 0, s.per_layer_width);
    lay_out_experts(scratch);
    lay_out_latent(scratch);
    lay_out_streams(scratch);
    const std::size_t state = lay_out_mixers(scratch);

    const std::size_t above = (rows_above / kChunk + 2) * kChunk;
    scratch_stride_ = std::max<std::size_t>(
        {attention_floats(above), 2 * kRowBlock * kGroup, state,
         static_cast<std::size_t>(s.num_layers) * s.per_layer_width});
    scratch_ = scratch.take<float>(threads * scratch_stride_);

    states_ = scratch.take<Attended>(num_states);
    float* partial = scratch.take<float>(num_states * dim);
    for (std::size_t i = 0; scratch.is_real() && i < num_states; ++i)
        states_[i].out = partial + i * dim;
}

// The most rows whose attention is split, and the most states that its tasks leave, in the full context of a cache.
std::pair<int, std::size_t> Decoder::most_split(const Cache& cache,
                                                const AttentionKind& kind) const {
    std::size_t runs = 0;
    for (int chunk = 0; chunk < cache.blocks_per_slot(); chunk = run_stop(chunk)) ++runs;
    const auto [heads, rows] = pairs_of(kind);
    const int group = shape_.num_heads / kind.kv.num_heads,
              units = kind.kv.num_heads * ((group + heads - 1) / heads),  // of rows that attend together
        times = pool_.size() > 1 && runs > 1 ? (most_split_units() - 1) / units : 0;
    const std::size_t states = static_cast<std::size_t>(times) * units * runs * kMaxPairs;
    return {times * rows, std::min(states, most_states(kind))};
}

std::size_t Decoder::attention_nbytes(const Cache& cache) {
    const Runtime::PassLock lock(runtime_);
    std::size_t most = 0;
    for (const AttentionKind& kind : kinds_)
        most = std::max(most, most_split(cache, kind).second * state_nbytes(kind));
    return most + pool_.size() * attention_floats(2 * kChunk) * sizeof(float);
}

std::size_t Decoder::scratch_nbytes(Cache& cache, int num_rows, int num_nodes, int head_rows) {
    const Runtime::PassLock lock(runtime_);
    cache_ = &cache;
    std::size_t most = 0;
    const auto count = [&](int rows, const auto& lay_out) {
        num_rows_ = rows;
        Scratch scratch;
        lay_out(scratch);
        most = std::max(most, Runtime::with_slack(scratch.nbytes()));
    };
    count(num_rows, [&](Scratch& scratch) { lay_out(scratch, num_nodes, 0); });
    for (const AttentionKind& kind : kinds_) {
        const auto [rows, states] = most_split(cache, kind);
        count(rows, [&, states = states](Scratch& scratch) { lay_out(scratch, num_nodes, states); });
    }
    cache_ = nullptr;
    return std::max(most, Runtime::with_slack(reads_hidden_.scratch_nbytes(head_rows)));
}

// Room for the rows of the widest recurrent layers; returns the numbers of scratch that a thread needs.
std::size_t Decoder::lay_out_mixers(Scratch& scratch) {
    std::size_t channels = 0, heads = 0, state = 0;
    bool gates_mlp = false;
    for (const LayerShape& layer : shape_.layers) {
        const MixerShape& mixer = layer.mixer;
        gates_mlp |= layer.experts.gates_mlp;
        if (!mixer.has_heads()) continue;
        channels = std::max<std::size_t>(channels, mixer.num_channels);
        heads = std::max<std::size_t>(heads, mixer.num_key_heads * (1 + (mixer.kind == MixerKind::Delta)));
        state = std::max<std::size_t>(state, (mixer.key_dim + 2 * kStateRows) * mixer.value_dim);
    }
    const std::size_t rows = num_rows_;
    convolved_ = scratch.take<float>(rows * channels);
    scores_ = scratch.take<float>(rows * heads * cache_->states.num_rows);
    mlp_gates_ = scratch.take<float>(gates_mlp ? rows : 0);
    return state;
}

// Room for the layer of the most pairs and experts.
void Decoder::lay_out_experts(Scratch& scratch) {
    int num = 0, active = 0, inner = 0;
    bool has_norms = false;
    for (const LayerShape& layer : shape_.layers) {
        has_norms |= layer.experts.has_norms;
        num = std::max(num, layer.experts.num);
        active = std::max(active, layer.experts.num_active);
        inner = std::max(inner, layer.experts.inner);
    }
    const int pairs = num_rows_ * active,
              slots = pairs + (kRowsAside - 1) * std::min(num, pairs);
    router_stride_ = (num + kTile - 1) / kTile * kTile;
    router_logits_ = scratch.take<float>(static_cast<std::size_t>(num_rows_) * router_stride_);
    routing_ = {.experts = scratch.take<int>(pairs),
                .weights = scratch.take<float>(pairs),
                .slots = scratch.take<int>(pairs),
                .rows = scratch.take<int>(slots),
                .firsts = scratch.take<int>(num),
                .stops = scratch.take<int>(num),
                .slot_weights = scratch.take<float>(slots),
                .active = scratch.take<int>(num)};
    const std::size_t normed = has_norms ? static_cast<std::size_t>(num_rows_) * shape_.hidden_size : 0;
    experts_added_ = scratch.take<float>(normed);
    experts_input_ = scratch.take<float>(normed);
    gathered_ = scratch.take_rows(slots, shape_.hidden_size);
    expert_rows_ = scratch.take_rows(slots, inner);
}

void Decoder::forward(Cache& cache, std::span<const Segment> segments, const float* inputs,
                      float* hidden, std::span<const int> aux_layers, float* aux) {
    const Runtime::PassLock lock(runtime_);
    pass(cache, segments, {inputs}, hidden, aux_layers, aux);
}

void Decoder::pass(Cache& cache, std::span<const Segment> segments, const Inputs& inputs, float* hidden,
                   std::span<const int> aux_layers, float* aux) {
    for (int least = 0; int layer : aux_layers) {
        if (layer < least || layer >= shape_.num_layers)
            throw std::invalid_argument("aux_layers must be layers in ascending order");
        least = layer + 1;
    }
    hidden_ = hidden;
    aux_layers_ = aux_layers;
    aux_ = aux;
    begin_pass(cache, segments, inputs);
    if (num_rows_ == 0) return;
    plan_phases();
    pool_.run([](void* self, Worker& worker) { static_cast<Decoder*>(self)->run(worker); }, this,
              phases_, num_active());
}

void Decoder::write_kv(Cache& cache, std::span<const Segment> segments, const float* rows) {
    begin_pass(cache, segments, {rows, rows});
    phases_.assign(1, num_rows_);
    for (const LayerShape& layer : shape_.layers) phases_.push_back(layer.num_projected());
    pool_.run([](void* self, Worker& worker) { static_cast<Decoder*>(self)->write_kv_phases(worker); }, this,
              phases_, num_active());
}

// Checks, plans and lays out the rows of a pass.
void Decoder::begin_pass(Cache& cache, std::span<const Segment> segments, const Inputs& inputs) {
    if (!is_checked_) check();
    cache_ = &cache;
    segments_ = segments;
    inputs_ = inputs;
    check_segments();
    plan();
    if (ranks_ && static_cast<std::size_t>(num_rows_) * shape_.hidden_size > ranks_->num_floats())
        throw std::invalid_argument("more rows than ranks can exchange");
    int rows_above = 0;
    for (const Segment& s : segments)
        rows_above = std::max(rows_above, s.parents.empty() ? 0 : s.stop);
    std::size_t states = 0;
    for (const AttentionKind& kind : kinds_)
        if (kind.is_split) states = std::max(states, kind.tasks.size() * kind.unit_pairs);
    if (num_rows_ > 0) runtime_.lay_out([&](Scratch& scratch) { lay_out(scratch, rows_above, states); });
}

// Threads that get enough to read in each phase to be worth waiting for, and no fewer than share one line.
int Decoder::num_active() const {
    const std::size_t each = std::max<std::size_t>(phases_.size() * kThreadNbytes, 1);
    const std::size_t useful = layers_nbytes_ * static_cast<std::size_t>(num_rows_) / each;
    return static_cast<int>(std::min<std::size_t>(pool_.size(), std::max<std::size_t>(useful, kFan)));
}

std::vector<int> Decoder::phases(Cache& cache, std::span<const Segment> segments) {
    const Runtime::PassLock lock(runtime_);
    cache_ = &cache;
    segments_ = segments;
    check_segments();
    plan();
    plan_phases();
    return phases_;
}

// Pieces of every phase, in the order of `run`. Which phases there are depends on the weights
// alone: a late thread counts on it.
void Decoder::plan_phases() {
    const int rows = num_rows_;
    phases_.clear();
    if (shape_.per_layer_width > 0) add_phases({rows, std::min(4 * pool_.size(), per_layer_proj_.num_tiles()), rows});
    if (ranks_) add_phases({ranks_->rank() == 0 ? rows : 0, 1});
    if (shape_.streams.exists()) {
        plan_streams();
    } else {
        add_phases({rows});
        for (int i = 0; i < shape_.num_layers; ++i) plan_layer(i);
    }
    // A phase leaves its counters at 0, but for one that a fork left behind.
    if (const std::int64_t now = platform::process(); std::exchange(process_, now) != now)
        for (std::vector<Counter>* counters : {&heads_, &units_})
            for (Counter& counter : *counters) counter.num_done = 0;
}

void Decoder::add_phases(std::initializer_list<int> pieces) { phases_.insert(phases_.end(), pieces); }

void Decoder::plan_end(int pieces) {
    phases_.push_back(pieces);
    if (ranks_) phases_.push_back(1);
    phases_.push_back(row_pieces(num_rows_));
}

// In the order of `run_layer`.
void Decoder::plan_layer(int index) {
    const int rows = row_pieces(num_rows_), most = 4 * pool_.size(), added = std::min(most, shape_.hidden_size / kTile);
    const LayerShape& layer = layer_shape(index);
    const Layer& weights = layers_[index];
    if (mixer_of(index).exists()) {
        for (int count : mixer_pieces(index)) add_phases({count});
    } else if (shape_.latent.exists()) {
        for (int count : latent_pieces(index)) add_phases({count});
    } else if (layer.has_mixer) {
        add_phases({projected_pieces(index)});
        if (attends_by_row()) add_phases({rows});
        add_phases({static_cast<int>(kinds_[weights.kind].tasks.size())});
        if (quantizes_after_attention(index)) add_phases({rows});
    }
    if (layer.has_mixer) plan_end(added);
    const bool has_experts = experts_of(index).num > 0;
    if (layer.has_mlp) {
        const int units = std::min(2 * most, channel_units(weights.mlp));
        if (layer.has_sparse_activation) add_phases({units, rows});
        add_phases({units});
        if (weights.mlp.down.needs_whole_rows()) add_phases({rows});
        has_experts ? phases_.push_back(added) : plan_end(added);
    }
    if (has_experts) {
        add_phases({num_pairs(index), 2 * most});
        plan_end(added);
    }
    if (shape_.per_layer_width > 0) {
        add_phases({std::min(most, shape_.per_layer_width / kGroup)});
        plan_end(added);
    }
}

}  // namespace forerun
