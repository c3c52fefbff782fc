// The phases of a pass: every thread executes `run`, and does the pieces of each phase that it
// gets.

#include <algorithm>
#include <utility>

#include "model/model.h"

namespace forerun {

void Decoder::run(Worker& worker) {
    for (int i = 0; i < shape_.num_layers; ++i) {
        const Layer& layer = layers_[i];
        worker.each([&](int row) {
            enter(row, 2 * i);
            norm(row, layer.attn_norm, {&layer.q, &layer.k, &layer.v});
        });
        worker.each([&](int head) { project_head(i, head); });
        attend(worker, i);
        worker.each([&](int piece) { add_linear(layer.o, attended_, piece); });
        worker.each([&](int row) {
            enter(row, 2 * i + 1);
            norm(row, layer.mlp_norm, {shape_.is_gated ? &layer.gate : &layer.up, &layer.up});
        });
        worker.each([&](int piece) { mlp_up(layer, piece, worker.thread); });
        worker.each([&](int piece) { add_linear(layer.down, activated_, piece); });
    }
    worker.each([&](int row) {
        const std::size_t width = shape_.hidden_size;
        enter(row, 2 * shape_.num_layers);
        kernels_.norm(x_ + row * width, final_norm_, shape_.hidden_size, hidden_ + row * width);
    });
}

// A row before a sublayer, or at the end: embedded if none was run before, else tapped where layers
// have ended since.
void Decoder::enter(int row, int sublayer) {
    const std::size_t width = shape_.hidden_size;
    const auto next = std::lower_bound(sublayers_.begin(), sublayers_.end(), sublayer);
    const bool is_first = next == sublayers_.begin();
    if (is_first) start(row);
    const int first_ended = is_first ? 0 : next[-1] / 2;
    for (std::size_t i = 0; i < tap_layers_.size(); ++i)
        if (tap_layers_[i] >= first_ended && tap_layers_[i] < sublayer / 2)
            std::copy_n(x_ + row * width, width, taps_ + (i * num_rows_ + row) * width);
}

void Decoder::embed_row(std::int64_t id, float* x) const {
    unpack_row(embed_, static_cast<int>(id), x);
    if (shape_.embedding_multiplier != 1.0f)
        kernels_.scale(x, shape_.hidden_size, shape_.embedding_multiplier);
}

void Decoder::embed(std::span<const std::int64_t> ids, float* rows) {
    if (!is_checked_) check();
    for (std::int64_t id : ids) check_id(id);
    for (std::size_t i = 0; i < ids.size(); ++i) embed_row(ids[i], rows + i * shape_.hidden_size);
}

void Decoder::start(int row) {
    const std::size_t width = shape_.hidden_size;
    float* x = x_ + row * width;
    if (inputs_)
        std::copy_n(inputs_ + row * width, width, x);
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
    if (reader.flat)
        kernels_.flatten(x, *reader.flat, rows, row, column, count);
    else
        kernels_.quantize(x, rows, row, column, count);
}

void Decoder::norm(int row, const Norm& norm, std::initializer_list<const Linear*> readers) {
    const std::size_t width = shape_.hidden_size;
    float* out = normed_.x + row * width;
    kernels_.norm(x_ + row * width, norm, shape_.hidden_size, out);
    const auto reader = std::find_if(readers.begin(), readers.end(),
                                     [](const Linear* l) { return !l->is_float(); });
    if (reader != readers.end()) quantize(**reader, out, normed_, row, 0, shape_.hidden_size);
}

// One head of q, k or v, of all rows: normed, rotated and put where it belongs by the thread that
// computed it.
void Decoder::project_head(int index, int head) {
    const Layer& layer = layers_[index];
    const int heads = shape_.num_heads, kv = shape_.num_kv_heads, dim = shape_.head_dim,
              tiles = dim / kTile;
    const std::size_t stride = (heads + 2 * kv) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv;
    const Linear& linear = is_query ? layer.q : is_value ? layer.v : layer.k;
    const int local = is_query ? head : (head - heads) % kv;
    float* x = qkv_ + head * dim;
    kernels_.linear(linear, local * tiles, tiles, normed_, 0, num_rows_, {x, stride});
    for (int row = 0; row < num_rows_; ++row, x += stride) {
        if (!is_value) {
            const Norm& norm = is_query ? layer.q_norm : layer.k_norm;
            if (norm.weight) kernels_.norm(x, norm, dim, x);
            if (rope_.half > 0) kernels_.rotate(rope_, row, x);
        }
        if (is_query) {
            kernels_.scale(x, dim, shape_.attention_scale);
            if (cache_->page.has_codes()) code_query(row, head, x);
            continue;
        }
        const auto write = is_value ? kernels_.write_value : kernels_.write_key;
        write(cache_->head(index, segments_[row_segment_[row]].slot, local), cache_rows_[row], x);
    }
}

void Decoder::code_query(int row, int head, const float* x) {
    const std::size_t at = static_cast<std::size_t>(row) * shape_.num_heads + head,
                      dim = shape_.head_dim;
    kernels_.quantize_query(x, shape_.head_dim, coded_.codes + at * dim, coded_.scales + at,
                            coded_.sums + at * dim / kTile);
}

bool Decoder::quantizes_after_attention(const Layer& layer) const {
    return !layer.o.is_float() && shape_.head_dim % kGroup != 0;
}

void Decoder::attend(Worker& worker, int index) {
    worker.each([&](int task) { attend_task(task, index, worker.thread); });
    worker.each([&](int piece) { merge_tasks(piece / unit_rows_, piece % unit_rows_, index); });
    if (!quantizes_after_attention(layers_[index])) return;
    worker.each([&](int row) {
        const std::size_t width = attended_.width;
        quantize(layers_[index].o, attended_.x + row * width, attended_, row, 0, attended_.width);
    });
}

// One task's chunks in ascending order, merged.
void Decoder::attend_task(int index, int layer, int thread) {
    const Task& task = tasks_[index];
    const Unit& unit = units_[task.unit];
    const Segment& segment = segments_[unit.segment];
    const std::size_t dim = shape_.head_dim;
    float* scratch = scratch_ + thread * scratch_stride_;
    Attended own[kMaxPairs], next[kMaxPairs];
    for (Attended& state : own) state.out = std::exchange(scratch, scratch + dim);
    for (Attended& state : next) state.out = std::exchange(scratch, scratch + dim);
    Attended* states = is_split_ ? &states_[index * kMaxPairs] : own;
    const Attention a{.head = cache_->head(layer, segment.slot, unit.kv_head),
                      .queries = &queries_[unit.query],
                      .num_queries = unit.num_queries,
                      .group = unit.num_heads,
                      .q = qkv_ + unit.head * dim,
                      .q_stride = (shape_.num_heads + 2 * shape_.num_kv_heads) * dim,
                      .coded = coded_,
                      .num_heads = shape_.num_heads,
                      .head_index = unit.head,
                      .last_chunk = unit.stop_chunk - 1,
                      .row_stop = segment.base + segment.stop,
                      .scratch = scratch};
    kernels_.attend(a, task.first_chunk, states);
    for (int chunk = task.first_chunk + 1; chunk < task.stop_chunk; ++chunk) {
        kernels_.attend(a, chunk, next);
        for (int p = 0; p < unit.num_queries * unit.num_heads; ++p)
            kernels_.merge(next[p], states[p], shape_.head_dim);
    }
    for (int i = 0; !is_split_ && i < unit.num_queries; ++i)
        finish_query(unit, i, layer, own + i * unit.num_heads);
}

// All tasks of one of a unit's queries, in ascending order of chunks, into the first one's states.
void Decoder::merge_tasks(int index, int query, int layer) {
    const Unit& unit = units_[index];
    if (query >= unit.num_queries) return;
    const int pair = query * unit.num_heads;
    std::size_t first = 0;
    while (tasks_[first].unit != index) ++first;
    Attended* states = &states_[first * kMaxPairs + pair];
    for (std::size_t i = first + 1; i < tasks_.size() && tasks_[i].unit == index; ++i)
        for (int h = 0; h < unit.num_heads; ++h)
            kernels_.merge(states_[i * kMaxPairs + pair + h], states[h], shape_.head_dim);
    finish_query(unit, query, layer, states);
}

void Decoder::finish_query(const Unit& unit, int query, int layer, const Attended* states) {
    const int dim = shape_.head_dim, row = queries_[unit.query + query].row;
    for (int h = 0; h < unit.num_heads; ++h) {
        const int column = (unit.head + h) * dim;
        float* out = attended_.x + row * static_cast<std::size_t>(attended_.width) + column;
        kernels_.finish(states[h], dim, out);
        if (dim % kGroup == 0) quantize(layers_[layer].o, out, attended_, row, column, dim);
    }
}

int Decoder::mlp_units() const {
    return shape_.intermediate_size / (shape_.intermediate_size % kGroup == 0 ? kGroup : kTile);
}

// gate and up of some groups of channels, activated and quantized while they are at hand.
void Decoder::mlp_up(const Layer& layer, int piece, int thread) {
    const int units = mlp_units(), tiles = shape_.intermediate_size / units / kTile;
    const Part part(units, piece, std::min(8 * pool_.size(), units));
    const int channels = tiles * kTile;
    const std::size_t stride = channels, width = shape_.intermediate_size;
    float* up = scratch_ + thread * scratch_stride_;
    float* gate = up + kRowBlock * kGroup;
    const bool is_quantized = !layer.down.is_float();
    for (int tile = part.first * tiles; tile < part.stop * tiles; tile += tiles)
        for (int first = 0; first < num_rows_; first += kRowBlock) {
            const int count = std::min(kRowBlock, num_rows_ - first);
            kernels_.linear(layer.up, tile, tiles, normed_, first, count, {up, stride});
            if (shape_.is_gated)
                kernels_.linear(layer.gate, tile, tiles, normed_, first, count, {gate, stride});
            const float *x = shape_.is_gated ? gate : up, *factor = shape_.is_gated ? up : nullptr;
            kernels_.activate(shape_.activation, x, factor, count * channels, up);
            // Quantized rows are read as codes only: their floats stay here, in the cache.
            for (int i = 0; i < count; ++i)
                if (is_quantized)
                    quantize(layer.down, up + i * stride, activated_, first + i, tile * kTile,
                             channels);
                else
                    std::copy_n(up + i * stride, stride,
                                activated_.x + (first + i) * width + tile * kTile);
        }
}

// A piece of a linear layer, added to the residual stream.
void Decoder::add_linear(const Linear& linear, const Rows& rows, int piece) {
    const std::size_t width = shape_.hidden_size;
    const Part part(linear.num_tiles(), piece, std::min(4 * pool_.size(), linear.num_tiles()));
    kernels_.linear(linear, part.first, part.stop - part.first, rows, 0, num_rows_,
                    {x_ + part.first * kTile, width, true, shape_.residual_multiplier});
}

}  // namespace forerun
