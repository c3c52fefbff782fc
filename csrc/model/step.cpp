// The phases of a pass: every thread executes `run`, and does the pieces of each phase that it
// gets. Those of MLPs and experts are in mlp.cpp.

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "model/model.h"

namespace forerun {

void Decoder::run(Worker& worker) {
    if (shape_.per_layer_width > 0) run_inputs(worker);
    if (ranks_) {
        worker.each([&](int row) {
            start(row, ranks_->own() + static_cast<std::size_t>(row) * shape_.hidden_size);
        });
        worker.each([&](int) { all_reduce(); });
    }
    if (shape_.streams.exists()) return run_streams(worker);
    worker.each([&](int row) { begin_layer(0, row); }, [&] { rows_began(0); });
    for (int i = 0; i < shape_.num_layers; ++i) run_layer(worker, i);
}

void Decoder::run_layer(Worker& worker, int index) {
    if (mixer_of(index).exists())
        run_mixer(worker, index);
    else if (layer_shape(index).has_mixer)
        shape_.latent.exists() ? run_latent(worker, index) : run_attention(worker, index);
    if (layer_shape(index).has_feed_forward()) run_mlp(worker, index);
    if (shape_.per_layer_width > 0) run_per_layer(worker, index);
}

// What the first phase of a layer reads of a row; behind the last one, what the pass gives.
void Decoder::begin_layer(int index, int row) {
    enter(row, 2 * index);
    if (index == shape_.num_layers) {
        const std::size_t first = static_cast<std::size_t>(row) * shape_.hidden_size;
        return kernels_.norm(x_ + first, final_norm_, shape_.hidden_size, hidden_ + first);
    }
    if (!layer_shape(index).has_mixer) return begin_mlp(index, row);
    const Layer& layer = layers_[index];
    if (mixer_of(index).exists())
        norm(row, layer.attn_norm, std::array{&layer.in_proj, &layer.z, &layer.beta, &layer.dt});
    else if (shape_.latent.exists())
        norm(row, layer.attn_norm, std::array{&layer.q_a, &layer.q, &layer.q_rope, &layer.kv_a, &layer.k_rope});
    else if (inputs_.attention && index == 0)
        take_attention_input(row);
    else
        norm(row, layer.attn_norm, std::array{&layer.q, &layer.k, &layer.v, &layer.attn_gate});
}

// After `begin_layer` of all rows: what a layer that is experts alone needs of them.
void Decoder::rows_began(int index) {
    if (index < shape_.num_layers && !layer_shape(index).has_mixer && experts_of(index).num > 0)
        place_pairs(index);
}

void Decoder::run_attention(Worker& worker, int index) {
    const auto piece = [&](int piece) { project(index, piece); };
    if (attends_by_row())
        worker.each_and_rows(piece, num_rows_, [&](int row) { norm_heads(index, row); });
    else
        worker.each(piece);
    attend(worker, index);
    end_attention(worker, index);
}

// The output projection of attention, or of what stands in its place.
void Decoder::end_attention(Worker& worker, int index) {
    const Layer& layer = layers_[index];
    const bool has_feed_forward = layer_shape(index).has_feed_forward();
    end_sublayer(
        worker,
        [&](int piece) { add_linear(layer.o, attended_.of(layer.o), piece); },
        [&](int row) { has_feed_forward ? begin_mlp(index, row) : begin_layer(index + 1, row); },
        [&] {
            if (!has_feed_forward) rows_began(index + 1);
            if (experts_of(index).num > 0) place_pairs(index);
        });
}

// A row before a sublayer, or at the end: embedded before the first, else with what the one before adds, and
// copied for the aux layers. The attention of layer i is sublayer 2 i, its MLP 2 i + 1.
void Decoder::enter(int row, int sublayer) {
    const std::size_t width = shape_.hidden_size;
    float* x = x_ + row * width;
    if (sublayer == 0 && ranks_)
        std::copy_n(ranks_->part(0) + row * width, width, x);
    else if (sublayer == 0 && shape_.per_layer_width == 0)
        start(row, x);
    if (sublayer == 0) return;
    if (ranks_) add_parts(row);
    if (shape_.norms_after) add_sublayer(row, sublayer - 1);
    for (std::size_t i = 0; i < aux_layers_.size(); ++i)
        if (2 * aux_layers_[i] + 2 == sublayer)
            std::copy_n(x, width, aux_ + (i * num_rows_ + row) * width);
}

void Decoder::all_reduce() { ranks_->all_reduce(static_cast<std::size_t>(num_rows_) * shape_.hidden_size); }

// What the ranks computed of a sublayer, added up in their order: added to the row, or kept to be normed.
void Decoder::add_parts(int row) {
    const std::size_t width = shape_.hidden_size, first = row * width;
    for (std::size_t i = first; i < first + width; ++i) {
        float sum = ranks_->part(0)[i];
        for (int rank = 1; rank < ranks_->size(); ++rank) sum += ranks_->part(rank)[i];
        if (added_)
            added_[i] = sum;
        else
            x_[i] += shape_.residual_multiplier * sum;
    }
}

// Normed, what a sublayer computed is added to the row. After an MLP that is the last thing the layer did.
void Decoder::add_sublayer(int row, int sublayer) {
    const std::size_t width = shape_.hidden_size, first = row * width;
    const Layer& layer = layers_[sublayer / 2];
    if (shape_.streams.exists()) return add_to_streams(row, sublayer);
    if (sublayer % 2 == 0) return add_normed(row, layer.attn_out_norm, added_ + first);
    if (shape_.per_layer_width > 0)
        add_normed(row, layer.inp_norm, added_ + first);
    else
        add_mlp(row, layer);
    if (layer.scale.weight) kernels_.scale(x_ + first, shape_.hidden_size, *layer.scale.weight);
}

// What the MLP gave, with that of experts beside it.
void Decoder::add_mlp(int row, const Layer& layer) {
    const std::size_t width = shape_.hidden_size, first = row * width;
    float *dense = added_ + first, *experts = experts_added_ + first;
    if (layer.dense_out_norm.weight) {
        kernels_.norm(dense, layer.dense_out_norm, shape_.hidden_size, dense);
        kernels_.norm(experts, layer.experts_out_norm, shape_.hidden_size, experts);
        for (std::size_t i = 0; i < width; ++i) dense[i] += experts[i];
    }
    add_normed(row, layer.mlp_out_norm, dense);
}

void Decoder::add_normed(int row, const Norm& norm, const float* from) {
    const std::size_t width = shape_.hidden_size;
    float *x = x_ + row * width, *y = normed_.x + row * width;
    kernels_.norm(from, norm, shape_.hidden_size, y);
    for (std::size_t i = 0; i < width; ++i) x[i] += shape_.residual_multiplier * y[i];
}

void Decoder::embed_row(std::int64_t id, float* x) const {
    check_id(id);
    unpack_row(embed_, static_cast<int>(id), x);
    if (shape_.embedding_multiplier != 1.0f)
        kernels_.scale(x, shape_.hidden_size, shape_.embedding_multiplier);
}

void Decoder::embed(std::span<const std::int64_t> ids, float* rows) {
    if (!is_checked_) check();
    const Runtime::PassLock lock(runtime_);
    for (std::size_t i = 0; i < ids.size(); ++i) embed_row(ids[i], rows + i * shape_.hidden_size);
}

void Decoder::start(int row, float* x) {
    const std::size_t width = shape_.hidden_size;
    if (inputs_.states)
        std::copy_n(inputs_.states + row * width, width, x);
    else
        embed_row(tokens_[row], x);
    if (shape_.position_offset < 0) return;
    float* position = normed_.x + row * width;
    unpack_row(positions_, queries_[row].position + shape_.position_offset, position);
    for (std::size_t i = 0; i < width; ++i) x[i] += position[i];
}

// Columns of a row, as a layer that reads it needs them.
void Decoder::quantize(const Linear& reader, const float* x, const Rows& rows, int row, int column,
                       int count) const {
    forerun::quantize(kernels_, reader, x, rows, row, column, count);
}

// The same; floats where they are read, or first all of them are needed.
void Decoder::put(const Linear& reader, const float* x, const Rows& rows, int row, int column,
                  int count) const {
    if (reader.is_float() || reader.needs_whole_rows())
        std::copy_n(x, count, rows.x + static_cast<std::size_t>(row) * rows.width + column);
    else
        quantize(reader, x, rows, row, column, count);
}

void Decoder::norm(int row, const Norm& norm, std::span<const Linear* const> readers) {
    const std::size_t width = shape_.hidden_size;
    float* out = normed_.x + row * width;
    if (norm.weight)
        kernels_.norm(x_ + row * width, norm, shape_.hidden_size, out);
    else
        std::copy_n(x_ + row * width, width, out);
    hand_normed(row, readers);
}

// A row whose floats are complete, as those that read it need it.
void Decoder::hand(const Rows& rows, int row, std::span<const Linear* const> readers) const {
    const auto reader = std::ranges::find_if(
        readers, [](const Linear* linear) { return linear->format && !linear->is_float(); });
    if (reader != readers.end())
        quantize(**reader, rows.x + static_cast<std::size_t>(row) * rows.width, rows, row, 0, rows.width);
}

void Decoder::take_attention_input(int row) {
    const Layer& layer = layers_[0];
    const Rows& rows = attention_input();
    const std::size_t width = rows.width, first = row * width;
    std::copy_n(inputs_.attention + first, width, rows.x + first);
    hand(rows, row, std::array{&layer.q, &layer.k, &layer.v});
}

void Decoder::write_kv_phases(Worker& worker) {
    worker.each([&](int row) { take_attention_input(row); });
    for (int i = 0; i < shape_.num_layers; ++i)
        worker.each([&](int head) { project_head(i, shape_.num_heads + head, {0, head_dim(i) / kTile}); });
}

int Decoder::kv_layer(int layer) const {
    const int shared = layer_shape(layer).shares_kv_of;
    return shared < 0 ? layer : shared;
}

std::size_t Decoder::qkv_stride(int layer) const {
    if (shape_.latent.exists()) return latent_stride();
    const int gates = shape_.has_attention_gate ? shape_.num_heads * head_dim(layer) : 0;
    return static_cast<std::size_t>(gate_column(layer)) + gates;
}

int Decoder::gate_column(int layer) const {
    const KvShape& kv = layer_shape(layer).kv;
    return (shape_.num_heads + 2 * kv.num_heads) * kv.head_dim;
}

// Heads of queries, keys and values, and the gates of heads behind them.
int Decoder::num_projected_heads(int index) const {
    const int gates = shape_.has_attention_gate ? shape_.num_heads : 0;
    return shape_.num_heads + layer_shape(index).num_projected() + gates;
}

// Whole heads, or parts of them where they are too few to go round.
int Decoder::projected_pieces(int index) const {
    const int heads = num_projected_heads(index), most = 4 * pool_.size();
    return heads >= most ? heads : std::min(most, heads * head_dim(index) / kTile);
}

void Decoder::project(int index, int piece) {
    const int tiles = head_dim(index) / kTile;
    const Part part(num_projected_heads(index) * tiles, piece, projected_pieces(index));
    for (int tile = part.first, stop; tile < part.stop; tile = stop) {
        const int head = tile / tiles, first = head * tiles;
        stop = std::min(part.stop, first + tiles);
        project_head(index, head, {tile - first, stop - first});
    }
}

// Tiles of a head of q, k, v or the gates, of all rows. Whoever does its last one puts it where it belongs.
void Decoder::project_head(int index, int head, const Part& part) {
    const Layer& layer = layers_[index];
    const int heads = shape_.num_heads, kv = layer_shape(index).kv.num_heads, dim = head_dim(index),
              tiles = dim / kTile, gate = head - heads - layer_shape(index).num_projected(),
              count = part.stop - part.first, column = part.first * kTile;
    if (gate >= 0)
        return kernels_.linear(layer.attn_gate, gate * tiles + part.first, count, attention_input(), 0, num_rows_,
                               {qkv_ + gate_column(index) + gate * dim + column, qkv_stride(index)});
    const bool is_query = head < heads, is_value = head >= heads + kv;
    const Linear& linear = is_query ? layer.q : is_value ? layer.v : layer.k;
    const int local = is_query ? head : (head - heads) % kv;
    kernels_.linear(linear, local * tiles + part.first, count, attention_input(), 0, num_rows_,
                    {qkv_ + head * dim + column, qkv_stride(index)});
    if (count < tiles && !completes(heads_[head].num_done, count, tiles)) return;
    if (attends_by_row() && !is_value) return;  // first all of them are normed together
    for (int row = 0; row < num_rows_; ++row) place_head(index, head, row);
}

// The query and key heads of a row, normed over their whole width.
void Decoder::norm_heads(int index, int row) {
    const Layer& layer = layers_[index];
    const int dim = head_dim(index), kv = layer_shape(index).kv.num_heads, q = shape_.num_heads * dim;
    float* x = qkv_ + row * qkv_stride(index);
    kernels_.norm(x, layer.q_norm, q, x);
    kernels_.norm(x + q, layer.k_norm, kv * dim, x + q);
    for (int head = 0; head < shape_.num_heads + kv; ++head) place_head(index, head, row);
}

// A row's head: normed, rotated and scaled if it is a query, else written to the cache. Keys that are
// values too are written as such before that.
void Decoder::place_head(int index, int head, int row) {
    const Layer& layer = layers_[index];
    const int heads = shape_.num_heads, kv = layer_shape(index).kv.num_heads, dim = head_dim(index);
    const bool is_query = head < heads, is_value = head >= heads + kv;
    float* x = qkv_ + row * qkv_stride(index) + head * dim;
    if (is_value) return write_value(index, head - heads - kv, row, x);
    if (!is_query && !layer_shape(index).has_values) {
        float* value = x + kv * dim;
        std::copy_n(x, dim, value);
        write_value(index, head - heads, row, value);
    }
    const Norm& norm = is_query ? layer.q_norm : layer.k_norm;
    const int local = is_query ? head : head - heads;
    if (!shape_.norms_turned) norm_head(norm, local, dim, x);
    const Rope& rope = kinds_[layer.kind].rope;
    if (rope.half > 0) kernels_.rotate(rope, row, x);
    if (shape_.norms_turned) norm_head(norm, local, dim, x);
    if (!is_query) {
        const int slot = segments_[row_segment_[row]].slot;
        return kernels_.write_key(cache_->head(index, slot, head - heads), cache_rows_[row], x);
    }
    kernels_.scale(x, dim, query_scales_[row]);
    if (cache_->has_codes()) code_query(index, row, head, x);
}

// A head of q or k, where each is normed by itself.
void Decoder::norm_head(const Norm& norm, int head, int dim, float* x) const {
    if (shape_.qk_norm == QkNorm::Head) kernels_.norm(x, norm, dim, x);
    if (shape_.qk_norm == QkNorm::Each)
        kernels_.norm(x, {norm.weight + head * dim, nullptr, norm.eps, norm.is_layer}, dim, x);
}

void Decoder::write_value(int index, int head, int row, float* x) {
    const int dim = head_dim(index), slot = segments_[row_segment_[row]].slot;
    if (shape_.norms_values) kernels_.norm(x, {ones_.data(), nullptr, shape_.norm_eps, false}, dim, x);
    kernels_.write_value(cache_->head(index, slot, head), cache_rows_[row], x);
}

void Decoder::code_query(int index, int row, int head, const float* x) {
    const std::size_t at = static_cast<std::size_t>(row) * shape_.num_heads + head,
                      dim = head_dim(index), groups = key_groups(head_dim(index));
    kernels_.quantize_query(x, head_dim(index), coded_.codes + at * dim, coded_.scales + at,
                            coded_.sums + at * groups);
}

bool Decoder::quantizes_after_attention(int index) const {
    const Linear& o = layers_[index].o;
    if (shape_.latent.exists()) return false;  // run_latent does
    return o.needs_whole_rows() || (head_dim(index) % kGroup != 0 && o.format && !o.is_float());
}

// A row whose floats are complete.
void Decoder::quantize_row(const Linear& reader, const Rows& rows, int row) const {
    quantize(reader, rows.x + static_cast<std::size_t>(row) * rows.width, rows, row, 0, rows.width);
}

void Decoder::attend(Worker& worker, int index) {
    const auto task = [&](int task) { attend_task(task, index, worker.thread); };
    if (!quantizes_after_attention(index)) return worker.each(task);
    const Linear& o = layers_[index].o;
    worker.each_and_rows(task, num_rows_, [&](int row) { quantize_row(o, attended_.of(o), row); });
}

// One task's runs of chunks in ascending order, merged; whoever does a unit's last task merges all of them.
void Decoder::attend_task(int index, int layer, int thread) {
    const AttentionKind& kind = kinds_[layers_[layer].kind];
    const AttentionTask& task = kind.tasks[index];
    const AttentionUnit& unit = kind.units[task.unit];
    const Segment& segment = segments_[unit.segment];
    const std::size_t dim = head_dim(layer);
    float* scratch = scratch_ + thread * scratch_stride_;
    Attended own[kMaxPairs], next[kMaxPairs];
    for (Attended& state : own) state.out = std::exchange(scratch, scratch + dim);
    for (Attended& state : next) state.out = std::exchange(scratch, scratch + dim);
    Attended* states = kind.is_split ? &states_[index * kind.unit_pairs] : own;
    const Attention a{.head = cache_->head(kv_layer(layer), segment.slot, unit.kv_head),
                      .queries = &kind.queries[unit.query],
                      .num_queries = unit.num_queries,
                      .group = unit.num_heads,
                      .q = qkv_ + unit.head * dim,
                      .q_stride = qkv_stride(layer),
                      .coded = coded_,
                      .num_heads = shape_.num_heads,
                      .head_index = unit.head,
                      .last_chunk = unit.stop_chunk - 1,
                      .row_stop = segment.base + segment.stop,
                      .cap = shape_.attention_cap,
                      .scratch = scratch};
    const auto stop_of = [&](int chunk) { return std::min(run_stop(chunk), task.stop_chunk); };
    int chunk = stop_of(task.first_chunk);
    kernels_.attend(a, task.first_chunk, chunk, states);
    for (; chunk < task.stop_chunk; chunk = stop_of(chunk)) {
        kernels_.attend(a, chunk, stop_of(chunk), next);
        for (int p = 0; p < unit.num_queries * unit.num_heads; ++p)
            kernels_.merge(next[p], states[p], value_dim(layer));
    }
    if (kind.is_split) {
        const int tasks = unit.stop_task - unit.first_task;
        if (!completes(units_[task.unit].num_done, 1, tasks)) return;
        states = merge_tasks(kind, unit, layer);
    }
    for (int i = 0; i < unit.num_queries; ++i) finish_query(unit, i, layer, states + i * unit.num_heads);
}

// The states of all tasks of a unit, in ascending order of chunks, into the first one's.
Attended* Decoder::merge_tasks(const AttentionKind& kind, const AttentionUnit& unit, int layer) {
    Attended* states = &states_[unit.first_task * kind.unit_pairs];
    for (int i = unit.first_task + 1; i < unit.stop_task; ++i)
        for (int pair = 0; pair < unit.num_queries * unit.num_heads; ++pair)
            kernels_.merge(states_[i * kind.unit_pairs + pair], states[pair], value_dim(layer));
    return states;
}

void Decoder::finish_query(const AttentionUnit& unit, int query, int layer, Attended* states) {
    const int dim = value_dim(layer), row = queries_[unit.query + query].row;
    if (shape_.latent.exists()) return finish_latent(unit, row, layer, states);
    const Rows attended = attended_.of(layers_[layer].o);
    const float* sinks = layers_[layer].sinks.weight;
    for (int h = 0; h < unit.num_heads; ++h) {
        const int column = (unit.head + h) * dim;
        // A sink attends like a key whose value is 0.
        if (sinks) kernels_.merge({sinks[unit.head + h], 1.0f, zeros_.data()}, states[h], dim);
        float* out = attended.x + row * static_cast<std::size_t>(attended.width) + column;
        kernels_.finish(states[h], dim, out);
        if (shape_.has_attention_gate)
            kernels_.gate(qkv_ + row * qkv_stride(layer) + gate_column(layer) + column, out, dim, out);
        if (dim % kGroup == 0 && !layers_[layer].o.needs_whole_rows())
            quantize(layers_[layer].o, out, attended, row, column, dim);
    }
}

// A piece of a linear layer, added to the residual stream, or kept to be normed.
void Decoder::add_linear(const Linear& linear, const Rows& rows, int piece) {
    const Part part(linear.num_tiles(), piece, std::min(4 * pool_.size(), linear.num_tiles()));
    kernels_.linear(linear, part.first, part.stop - part.first, rows, 0, num_rows_,
                    residual(part.first));
}

// Where a sublayer's outputs go, from a tile on.
Output Decoder::residual(int tile) const {
    const std::size_t width = shape_.hidden_size;
    if (ranks_) return {ranks_->own() + tile * kTile, width};
    if (added_) return {added_ + tile * kTile, width};
    return {x_ + tile * kTile, width, true, shape_.residual_multiplier};
}

}  // namespace forerun
