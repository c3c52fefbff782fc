#include "drafters/layered_network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

std::vector<KvShape> kv_shapes(const LayeredShape& shape) {
    return std::vector<KvShape>(shape.num_layers, {shape.num_kv_heads, shape.head_dim});
}

}  // namespace

LayeredNetwork::LayeredNetwork(Runtime& runtime, Decoder& target, const LayeredShape& shape)
    : DraftNetwork(runtime, target),
      layered_(shape),
      cache_(kv_shapes(shape), shape.num_slots, shape.max_len + shape.num_guessed, KvForms{}),
      lengths_(shape.num_slots),
      tokens_(shape.num_slots) {
    if (shape.state_size % kTile || shape.head_dim % kTile || shape.intermediate_size % kTile)
        throw std::invalid_argument("state size, head size and MLP size must be multiples of 16");
    if (shape.num_heads % shape.num_kv_heads || shape.num_heads / shape.num_kv_heads > kMaxPairs)
        throw std::invalid_argument("heads must be a multiple of kv heads, at most 24 for each");
}

void LayeredNetwork::check_layers() {
    const LayeredShape& s = layered_;
    const int q = s.num_heads * s.head_dim, kv = s.num_kv_heads * s.head_dim;
    layers_.clear();
    for (int i = 0; i < s.num_layers; ++i) {
        const std::string layer = s.num_layers > 1 ? std::to_string(i) + "." : "";
        const auto norm_of = [&](const char* name, int width, bool is_needed) {
            return is_needed || has(layer + name) ? norm(layer + name, width) : Norm{};
        };
        layers_.push_back({.q = &matrix(layer + "q", q, s.input_size),
                           .k = &matrix(layer + "k", kv, s.input_size),
                           .v = &matrix(layer + "v", kv, s.input_size),
                           .o = &matrix(layer + "o", width(), q),
                           .gate = &matrix(layer + "gate", s.intermediate_size, width()),
                           .up = &matrix(layer + "up", s.intermediate_size, width()),
                           .down = &matrix(layer + "down", width(), s.intermediate_size),
                           .input_norm = norm_of("input_norm", width(), true),
                           .q_norm = norm_of("q_norm", s.head_dim, false),
                           .k_norm = norm_of("k_norm", s.head_dim, false),
                           .mlp_norm = norm_of("mlp_norm", width(), true)});
    }
    if (2 * static_cast<int>(frequencies_.size()) != s.head_dim)
        throw std::invalid_argument("the frequencies of positions must be half of a head");
}

void LayeredNetwork::clear(int slot) {
    const Runtime::PassLock lock(runtime_);
    cache_.check_slot(slot);
    lengths_[slot] = 0;
}

void LayeredNetwork::reuse(int slot, int source, int rows) {
    const Runtime::PassLock lock(runtime_);
    cache_.check_slot(slot);
    cache_.check_slot(source);
    if (rows < 0 || rows > lengths_[source])
        throw std::invalid_argument("the slot has not so many rows");
    const int each = cache_.blocks_per_slot();  // each slot has blocks of its own
    if (slot != source)
        for (int block = 0; block * kChunk < rows; ++block)
            cache_.copy_block(source * each + block, slot * each + block);
    lengths_[slot] = rows;
}

void LayeredNetwork::prefill(int slot, std::span<const int> tokens, const float* states) {
    const Runtime::PassLock lock(runtime_);
    if (layers_.empty()) check();
    cache_.check_slot(slot);
    if (static_cast<int>(tokens.size()) > layered_.max_len - lengths_[slot])
        throw std::out_of_range("the sequence does not fit the cache");
    for (int token : tokens)
        if (token < 0 || token >= target_.shape().vocab_size)
            throw std::invalid_argument("token id " + std::to_string(token) +
                                        " is outside the vocabulary");
    const int width = layered_.num_aux_layers * layered_.state_size;
    prefill_slot_ = slot;
    for (std::size_t first = 0; first < tokens.size(); first += kPrefillRows) {
        const int rows = static_cast<int>(std::min<std::size_t>(kPrefillRows, tokens.size() - first));
        prefill_tokens_ = tokens.subspan(first, rows);
        prefill_states_ = states + first * width;
        num_prefill_ = rows;
        runtime_.lay_out([&](Scratch& scratch) {
            aux_ = scratch.take_rows(rows, width);
            inputs_ = scratch.take_rows(rows, layered_.input_size);
            qkv_ = scratch.take<float>(static_cast<std::size_t>(rows) * layered_.head_dim * num_heads());
            lay_out_prefill(scratch, rows);
        });
        resize_rows(rows);
        for (int row = 0; row < rows; ++row) place(row, slot, lengths_[slot] + row, lengths_[slot] + row);
        std::vector<int> phases;
        plan_prefill(phases, rows);
        pool_.run([](void* self, Worker& worker) { static_cast<LayeredNetwork*>(self)->run_prefill(worker); }, this,
                  phases);
        lengths_[slot] += rows;
        tokens_[slot] = prefill_tokens_.back();
        end_prefill(rows);
    }
}

void LayeredNetwork::begin_slots(std::span<int> tokens) {
    if (layers_.empty()) check();
    slots_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int slot = seeds_[i].slot;
        cache_.check_slot(slot);
        if (lengths_[slot] == 0 || std::count(slots_.begin(), slots_.end(), slot) > 0)
            throw std::invalid_argument("a slot is empty or named twice");
        slots_.push_back(slot);
        tokens[i] = tokens_[slot];
    }
}

void LayeredNetwork::resize_rows(int rows) {
    row_slots_.assign(rows, 0);
    cache_rows_.assign(rows, 0);
    cos_.assign(rows * frequencies_.size(), 0.0f);
    sin_ = cos_;
    queries_.assign(static_cast<std::size_t>(rows) * layered_.num_layers, {});
}

void LayeredNetwork::lay_out_rows(Scratch& scratch, int rows) {
    const std::size_t count = rows, dim = layered_.head_dim;
    inputs_ = scratch.take_rows(rows, layered_.input_size);
    attended_ = scratch.take_rows(rows, layered_.num_heads * layered_.head_dim);
    normed_ = scratch.take_rows(rows, width());
    activated_ = scratch.take_rows(rows, layered_.intermediate_size);
    x_ = scratch.take<float>(count * width());
    gates_ = scratch.take<float>(count * 2 * layered_.intermediate_size);
    qkv_ = scratch.take<float>(count * dim * num_heads());
    scratch_stride_ = kMaxPairs * (2 * kChunk + (layered_.num_guessed + kChunk - 1) / kChunk * kChunk + dim);
    scratch_ = scratch.take<float>(pool_.size() * scratch_stride_);
}

void LayeredNetwork::place(int row, int slot, int cache_row, int position) {
    row_slots_[row] = slot;
    cache_rows_[row] = cache_row;
    const std::size_t half = frequencies_.size();
    for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position) * frequencies_[i];
        cos_[row * half + i] = std::cos(angle);
        sin_[row * half + i] = std::sin(angle);
    }
}

void LayeredNetwork::quantize_row(const Linear& reader, const Rows& rows, int row) {
    if (row < num_placed_ && !reader.is_float())
        kernels_.quantize(rows.x + static_cast<std::size_t>(row) * rows.width, rows, row, 0, rows.width);
}

void LayeredNetwork::quantize_inputs(int layer, int row) {
    if (!layers_[layer].q->is_float())
        kernels_.quantize(inputs_.x + static_cast<std::size_t>(row) * inputs_.width, inputs_, row, 0,
                          inputs_.width);
}

void LayeredNetwork::plan_layer(std::vector<int>& phases, int rows, int units) const {
    const int each = row_pieces(rows);
    phases.insert(phases.end(), {num_heads(), units * layered_.num_kv_heads, each, pieces(), each, pieces(),
                                 pieces(), each});
}

void LayeredNetwork::project(int layer, int head, int rows) {
    const int heads = layered_.num_heads, kv = layered_.num_kv_heads, dim = layered_.head_dim,
              tiles = dim / kTile;
    if (rows == 0) return;
    const Layer& weights = layers_[layer];
    const std::size_t stride = static_cast<std::size_t>(num_heads()) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv;
    const Linear& linear = is_query ? *weights.q : is_value ? *weights.v : *weights.k;
    const int local = is_query ? head : (head - heads) % kv;
    const Rope rope{cos_.data(), sin_.data(), static_cast<int>(frequencies_.size())};
    float* x = qkv_ + static_cast<std::size_t>(head) * dim;
    kernels_.linear(linear, local * tiles, tiles, inputs_, 0, rows, {x, stride});
    for (int row = 0; row < rows; ++row, x += stride) {
        if (!is_value) {
            const Norm& norm = is_query ? weights.q_norm : weights.k_norm;
            if (norm.weight) kernels_.norm(x, norm, dim, x);
            kernels_.rotate(rope, row, x);
        }
        if (is_query) {
            kernels_.scale(x, dim, 1.0f / std::sqrt(static_cast<float>(dim)));
            continue;
        }
        const auto write = is_value ? kernels_.write_value : kernels_.write_key;
        write(cache_.head(layer, row_slots_[row], local), cache_rows_[row], x);
    }
}

// The heads of one kv head of some rows, over all that they see, in ascending order.
void LayeredNetwork::attend(int layer, int unit, int kv_head, int thread) {
    const Unit rows = unit < static_cast<int>(units_.size()) ? units_[unit] : Unit{0, 0};
    if (rows.count == 0) return;
    const int group = layered_.num_heads / layered_.num_kv_heads, slot = row_slots_[rows.first];
    const std::size_t dim = layered_.head_dim;
    const Query* queries = queries_.data() + static_cast<std::size_t>(layer) * num_placed_ + rows.first;
    int first = queries[0].first, last = 0;
    for (int i = 0; i < rows.count; ++i) {
        first = std::min(first, queries[i].first);
        last = std::max(last, queries[i].position);
    }
    Attended states[kMaxPairs];
    float* scratch = scratch_ + thread * scratch_stride_;
    for (Attended& state : states) state.out = std::exchange(scratch, scratch + dim);
    const Attention a{.head = cache_.head(layer, slot, kv_head),
                      .queries = queries,
                      .num_queries = rows.count,
                      .group = group,
                      .q = qkv_ + static_cast<std::size_t>(kv_head) * group * dim,
                      .q_stride = static_cast<std::size_t>(num_heads()) * dim,
                      .last_chunk = last / kChunk,
                      .row_stop = lengths_[slot] + layered_.num_guessed,
                      .scratch = scratch};
    kernels_.attend(a, first / kChunk, last / kChunk + 1, states);
    for (int i = 0; i < rows.count; ++i)
        for (int h = 0; h < group; ++h)
            kernels_.finish(states[i * group + h], layered_.head_dim,
                            attended_.x + static_cast<std::size_t>(queries[i].row) * attended_.width +
                                (kv_head * group + h) * dim);
}

void LayeredNetwork::norm_row(int layer, int row) {
    if (row >= num_placed_) return;
    const Layer& weights = layers_[layer];
    float* out = normed_.x + static_cast<std::size_t>(row) * width();
    kernels_.norm(x_of(row), weights.mlp_norm, width(), out);
    if (!weights.up->is_float()) kernels_.quantize(out, normed_, row, 0, width());
}

// gate and up of some groups of channels.
void LayeredNetwork::mlp_up(int layer, int piece) {
    const int inner = layered_.intermediate_size, tiles = inner % kGroup == 0 ? 2 : 1, rows = num_placed_;
    const Part part(inner / (tiles * kTile), piece, pieces());
    const int first = part.first * tiles, count = (part.stop - part.first) * tiles;
    if (rows == 0 || count == 0) return;
    const Layer& weights = layers_[layer];
    const std::size_t stride = 2 * static_cast<std::size_t>(inner);
    float *gate = gates_ + first * kTile, *up = gate + inner;
    kernels_.linear(*weights.gate, first, count, normed_, 0, rows, {gate, stride});
    kernels_.linear(*weights.up, first, count, normed_, 0, rows, {up, stride});
    for (int row = 0; row < rows; ++row, gate += stride, up += stride) {
        float* out = activated_.x + static_cast<std::size_t>(row) * inner + first * kTile;
        kernels_.activate(Activation::Silu, gate, up, count * kTile, out);
        if (!weights.down->is_float())
            kernels_.quantize(out, activated_, row, first * kTile, count * kTile);
    }
}

void LayeredNetwork::add_linear(const Linear& linear, const Rows& rows, int piece) {
    const Part part(linear.num_tiles(), piece, pieces());
    if (num_placed_ == 0) return;
    kernels_.linear(linear, part.first, part.stop - part.first, rows, 0, num_placed_,
                    {x_ + part.first * kTile, static_cast<std::size_t>(width()), true, 1.0f});
}

}  // namespace forerun
