// The phases of a pass. Every thread runs `run`; barriers stand between phases.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"

namespace forerun {
namespace {

constexpr int kRowBlock = 32;  // rows whose gate and up halves are held at a time

}  // namespace

void Best::see(const float* logits, int first_id, int count) {
    for (int i = 0; i < count && id >= 0; ++i) {
        if (logits[i] > value) {
            value = logits[i];
            id = first_id + i;
        }
        if (std::isnan(logits[i])) id = -1;
    }
}

void Best::see(const Best& later) {
    if (id < 0) return;
    if (later.id < 0 || later.value > value) *this = later;
}

void Decoder::run(int thread) {
    const int last = shape_.num_layers;
    embed(thread);
    for (int i = 0; i < last; ++i) {
        const Layer& layer = layers_[static_cast<std::size_t>(i)];
        norm_rows(thread, layer.attn_norm, {&layer.q.linear, &layer.k.linear, &layer.v.linear}, i - 1);
        project_qkv(thread, i);
        attend(thread, i);
        linear_rows(thread, layer.o.linear, attended_.rows);
        norm_rows(thread, layer.mlp_norm, {shape_.is_gated ? &layer.gate.linear : &layer.up.linear, &layer.up.linear}, -1);
        mlp_up(thread, layer);
        linear_rows(thread, layer.down.linear, activated_.rows);
    }
    const Part part(num_rows_, thread, pool_.size());
    for (int row = part.first; row < part.stop; ++row) {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(shape_.hidden_size);
        take_tap(row, last - 1);
        kernels_.norm(x_.as<float>() + at, final_norm_.norm, shape_.hidden_size, hidden_ + at);
    }
}

// The rows of a thread are the same here and in norm_rows, so no barrier is needed between.
void Decoder::embed(int thread) {
    const int width = shape_.hidden_size;
    const Part part(num_rows_, thread, pool_.size());
    for (int row = part.first; row < part.stop; ++row) {
        float* x = x_.as<float>() + static_cast<std::size_t>(row) * static_cast<std::size_t>(width);
        unpack_row(embed_.linear, tokens_[static_cast<std::size_t>(row)], x);
        if (shape_.embedding_multiplier != 1.0f) kernels_.scale(x, width, shape_.embedding_multiplier);
        if (shape_.position_offset < 0) continue;
        float* position = normed_.rows.x + static_cast<std::size_t>(row) * static_cast<std::size_t>(width);
        unpack_row(positions_.linear, queries_[static_cast<std::size_t>(row)].position + shape_.position_offset, position);
        for (int i = 0; i < width; ++i) x[i] += position[i];
    }
}

void Decoder::take_tap(int row, int layer) {
    const std::size_t width = static_cast<std::size_t>(shape_.hidden_size), r = static_cast<std::size_t>(row);
    for (std::size_t i = 0; i < tap_layers_.size(); ++i)
        if (tap_layers_[i] == layer)
            std::memcpy(taps_ + (i * static_cast<std::size_t>(num_rows_) + r) * width, x_.as<float>() + r * width, width * 4);
}

void Decoder::norm_rows(int thread, const NormWeights& weights, std::initializer_list<const Linear*> readers, int tap) {
    const int width = shape_.hidden_size;
    const bool is_quantized = std::any_of(readers.begin(), readers.end(), [](const Linear* l) { return !l->is_float(); });
    const Part part(num_rows_, thread, pool_.size());
    for (int row = part.first; row < part.stop; ++row) {
        const std::size_t at = static_cast<std::size_t>(row) * static_cast<std::size_t>(width);
        if (tap >= 0) take_tap(row, tap);
        kernels_.norm(x_.as<float>() + at, weights.norm, width, normed_.rows.x + at);
        if (is_quantized) kernels_.quantize(normed_.rows.x + at, normed_.rows, row, 0, width);
    }
    pool_.barrier();
}

// q, k and v head by head: each is normed, rotated and put where it belongs by the thread that computed it.
void Decoder::project_qkv(int thread, int index) {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    const int tiles = shape_.head_dim / kTile, kv = shape_.num_kv_heads, heads = shape_.num_heads;
    const std::size_t stride = static_cast<std::size_t>((heads + 2 * kv) * shape_.head_dim);
    const Part part(heads + 2 * kv, thread, pool_.size());
    for (int h = part.first; h < part.stop; ++h) {
        const Linear& linear = h < heads ? layer.q.linear : h < heads + kv ? layer.k.linear : layer.v.linear;
        const int local = h < heads ? h : (h - heads) % kv;
        kernels_.linear(linear, local * tiles, tiles, normed_.rows, 0, num_rows_, {qkv_.as<float>() + h * shape_.head_dim, stride, false, 1.0f});
        for (int row = 0; row < num_rows_; ++row) place_head(index, h, row);
    }
    pool_.barrier();
}

void Decoder::place_head(int index, int h, int row) {
    const Layer& layer = layers_[static_cast<std::size_t>(index)];
    const int heads = shape_.num_heads, kv = shape_.num_kv_heads, dim = shape_.head_dim;
    const std::size_t r = static_cast<std::size_t>(row);
    float* x = qkv_.as<float>() + r * static_cast<std::size_t>((heads + 2 * kv) * dim) + h * dim;
    const Segment& segment = segments_[static_cast<std::size_t>(row_segment_[r])];
    if (h >= heads + kv) {
        const KvHead to = cache_->head(index, segment.slot, h - heads - kv);
        kernels_.write_value(const_cast<void*>(to.values), to.is_half, dim, row_slots_[r], x);
        return;
    }
    const NormWeights& norm = h < heads ? layer.q_norm : layer.k_norm;
    if (norm.norm.weight) kernels_.norm(x, norm.norm, dim, x);
    if (rope_.half > 0) kernels_.rotate(rope_, row, x);
    if (h < heads) {
        kernels_.scale(x, dim, shape_.attention_scale);
        return;
    }
    const KvHead to = cache_->head(index, segment.slot, h - heads);
    kernels_.write_key(const_cast<void*>(to.keys), to.is_half, dim, row_slots_[r], x);
}

void Decoder::attend(int thread, int index) {
    const std::size_t dim = static_cast<std::size_t>(shape_.head_dim);
    float* scratch = scratch_.as<float>() + static_cast<std::size_t>(thread) * scratch_stride_;
    const int num_tasks = static_cast<int>(tasks_.size());
    const Part part(num_tasks, thread, pool_.size());
    for (int i = part.first; i < part.stop; ++i) {
        const Task& task = tasks_[static_cast<std::size_t>(i)];
        const Unit& unit = units_[static_cast<std::size_t>(task.unit)];
        Attended own[kMaxPairs];
        for (std::size_t p = 0; p < kMaxPairs; ++p) own[p].out = scratch + p * dim;
        attend_task(task, index, scratch + kMaxPairs * dim, is_split_ ? &states_[static_cast<std::size_t>(i) * kMaxPairs] : own);
        if (!is_split_) finish_unit(unit, own);
    }
    if (is_split_) {
        pool_.barrier();
        const Part units(static_cast<int>(units_.size()), thread, pool_.size());
        for (int i = units.first; i < units.stop; ++i) merge_tasks(i);
    }
    pool_.barrier();
    if (layers_[static_cast<std::size_t>(index)].o.linear.is_float() || shape_.head_dim % kGroup == 0) return;
    const Part rows(num_rows_, thread, pool_.size());
    const int width = shape_.num_heads * shape_.head_dim;
    for (int row = rows.first; row < rows.stop; ++row)
        kernels_.quantize(attended_.rows.x + static_cast<std::size_t>(row) * static_cast<std::size_t>(width), attended_.rows, row, 0, width);
    pool_.barrier();
}

// One task's chunks in ascending order, merged into `states`.
void Decoder::attend_task(const Task& task, int layer, float* scratch, Attended* states) {
    const Unit& unit = units_[static_cast<std::size_t>(task.unit)];
    const Segment& segment = segments_[static_cast<std::size_t>(unit.segment)];
    const std::size_t dim = static_cast<std::size_t>(shape_.head_dim);
    Attention a;
    a.head = cache_->head(layer, segment.slot, unit.kv_head);
    a.queries = &queries_[static_cast<std::size_t>(unit.query)];
    a.num_queries = unit.num_queries;
    a.group = unit.num_heads;
    a.q_stride = static_cast<std::size_t>(shape_.num_heads + 2 * shape_.num_kv_heads) * dim;
    a.q = qkv_.as<float>() + static_cast<std::size_t>(unit.head) * dim;
    a.slot_stop = segment.base + segment.stop;
    a.scratch = scratch + kMaxPairs * dim;
    kernels_.attend(a, task.first_chunk, states);
    if (task.stop_chunk == task.first_chunk + 1) return;
    Attended next[kMaxPairs];
    for (std::size_t p = 0; p < kMaxPairs; ++p) next[p].out = scratch + p * dim;
    for (int chunk = task.first_chunk + 1; chunk < task.stop_chunk; ++chunk) {
        kernels_.attend(a, chunk, next);
        for (int p = 0; p < unit.num_queries * unit.num_heads; ++p) kernels_.merge(next[p], states[p], shape_.head_dim);
    }
}

// All tasks of a unit, in ascending order of chunks, into the first one's states.
void Decoder::merge_tasks(int index) {
    const Unit& unit = units_[static_cast<std::size_t>(index)];
    std::size_t first = 0;
    while (tasks_[first].unit != index) ++first;
    Attended* states = &states_[first * kMaxPairs];
    for (std::size_t i = first + 1; i < tasks_.size() && tasks_[i].unit == index; ++i)
        for (int p = 0; p < unit.num_queries * unit.num_heads; ++p)
            kernels_.merge(states_[i * kMaxPairs + static_cast<std::size_t>(p)], states[p], shape_.head_dim);
    finish_unit(unit, states);
}

void Decoder::finish_unit(const Unit& unit, const Attended* states) {
    const int dim = shape_.head_dim, width = shape_.num_heads * dim;
    for (int i = 0; i < unit.num_queries; ++i) {
        const int row = queries_[static_cast<std::size_t>(unit.query + i)].row;
        for (int h = 0; h < unit.num_heads; ++h) {
            const int column = (unit.head + h) * dim;
            float* out = attended_.rows.x + static_cast<std::size_t>(row) * static_cast<std::size_t>(width) + column;
            kernels_.finish(states[i * unit.num_heads + h], dim, out);
            if (dim % kGroup == 0) kernels_.quantize(out, attended_.rows, row, column, dim);
        }
    }
}

// gate and up of 32 channels, activated and quantized while they are at hand.
void Decoder::mlp_up(int thread, const Layer& layer) {
    const int tiles = shape_.intermediate_size % kGroup == 0 ? 2 : 1, channels = tiles * kTile;
    const bool is_quantized = !layer.down.linear.is_float();
    const std::size_t stride = static_cast<std::size_t>(channels), width = static_cast<std::size_t>(shape_.intermediate_size);
    float* up = scratch_.as<float>() + static_cast<std::size_t>(thread) * scratch_stride_;
    float* gate = up + kRowBlock * kGroup;
    const Part part(shape_.intermediate_size / channels, thread, pool_.size());
    for (int unit = part.first; unit < part.stop; ++unit) {
        for (int first = 0; first < num_rows_; first += kRowBlock) {
            const int count = std::min(kRowBlock, num_rows_ - first);
            kernels_.linear(layer.up.linear, unit * tiles, tiles, normed_.rows, first, count, {up, stride, false, 1.0f});
            if (shape_.is_gated) kernels_.linear(layer.gate.linear, unit * tiles, tiles, normed_.rows, first, count, {gate, stride, false, 1.0f});
            for (int row = 0; row < count; ++row) {
                float* out = activated_.rows.x + static_cast<std::size_t>(first + row) * width + static_cast<std::size_t>(unit) * stride;
                const float* u = up + static_cast<std::size_t>(row) * stride;
                const float* g = gate + static_cast<std::size_t>(row) * stride;
                kernels_.activate(shape_.activation, shape_.is_gated ? g : u, shape_.is_gated ? u : nullptr, channels, out);
                if (is_quantized) kernels_.quantize(out, activated_.rows, first + row, unit * channels, channels);
            }
        }
    }
    pool_.barrier();
}

// A linear layer added to the residual stream.
void Decoder::linear_rows(int thread, const Linear& linear, const Rows& rows) {
    const Part part(linear.num_tiles(), thread, pool_.size());
    kernels_.linear(linear, part.first, part.stop - part.first, rows, 0, num_rows_,
                    {x_.as<float>() + part.first * kTile, static_cast<std::size_t>(shape_.hidden_size), true, shape_.residual_multiplier});
    pool_.barrier();
}

}  // namespace forerun
