// The second half of a layer: a dense MLP, a mixture of experts, or both.
//
// Experts read each row by itself: a router chooses some for it, rows are grouped by expert, and the
// weights of each chosen expert are read once for all of its rows. A row adds up its experts in
// ascending order, whatever other rows have chosen. Sparsely gated experts after Shazeer et al.,
// arXiv 1701.06538.

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/math.h"
#include "model/model.h"
#include "model/sums.h"

namespace forerun {

// What its phases read of a row.
void Decoder::begin_mlp(int index, int row) {
    const Layer& layer = layers_[index];
    enter(row, 2 * index + 1);
    if (layer.router_norm.weight) {
        const std::size_t first = static_cast<std::size_t>(row) * shape_.hidden_size;
        kernels_.norm(x_ + first, layer.experts_norm, shape_.hidden_size, experts_input_ + first);
        norm(row, layer.router_norm, std::array{&layer.router});
        choose_experts(index, row);
    }
    const std::array readers{&layer.mlp.gate, &layer.mlp.up, &layer.router};
    shape_.is_parallel ? hand_normed(row, readers) : norm(row, layer.mlp_norm, readers);
    if (layer.mlp_gate.weight) gate_mlp(index, row);
    if (experts_of(index).num > 0 && !layer.router_norm.weight) choose_experts(index, row);
}

void Decoder::run_mlp(Worker& worker, int index) {
    const Layer& layer = layers_[index];
    const bool has_experts = experts_of(index).num > 0;
    const auto next = [&](int row) {
        shape_.per_layer_width > 0 ? begin_inputs(index, row) : begin_layer(index + 1, row);
    };
    const auto finish = [&] { rows_began(index + 1); };
    if (layer_shape(index).has_mlp) {
        const Linear& reader = layer.mlp.down;
        const Mlp& mlp = layer.mlp;
        if (mlp.has_sparse_activation)
            worker.each_and_rows([&](int piece) { gate_alone(mlp, piece); }, num_rows_,
                                 [&](int row) { find_cutoff(mlp, row); });
        const auto up = [&](int piece) { mlp_up(layer, piece, worker.thread); };
        const auto round = [&](int row) { quantize_row(reader, activated_.of(reader), row); };
        const auto down = [&](int piece) { add_linear(reader, activated_.of(reader), piece); };
        reader.needs_whole_rows() ? worker.each_and_rows(up, num_rows_, round) : worker.each(up);
        has_experts ? worker.each(down) : end_sublayer(worker, down, next, finish);
    }
    if (!has_experts) return;
    worker.each([&](int pair) { gather_pair(index, pair); });
    worker.each([&](int piece) { experts_up(index, piece, worker.thread); });
    end_sublayer(worker, [&](int piece) { experts_down(index, piece, worker.thread); }, next, finish);
}

// What the MLP beside experts is multiplied by.
void Decoder::gate_mlp(int index, int row) {
    const float *x = normed_.x + static_cast<std::size_t>(row) * shape_.hidden_size,
                *weight = layers_[index].mlp_gate.weight;
    mlp_gates_[row] = ieee::sigmoid(dot(x, weight, shape_.hidden_size));
}

// Gates whose cutoffs depend on all of a row's, of some channels.
void Decoder::gate_alone(const Mlp& mlp, int piece) {
    const Part part(mlp.gate.num_tiles(), piece, std::min(8 * pool_.size(), channel_units(mlp)));
    kernels_.linear(mlp.gate, part.first, part.stop - part.first, normed_, 0, num_rows_,
                    {gates_ + part.first * kTile, static_cast<std::size_t>(mlp.inner)});
}

void Decoder::find_cutoff(const Mlp& mlp, int row) {
    const float *gates = gates_ + static_cast<std::size_t>(row) * mlp.inner, count = static_cast<float>(mlp.inner);
    const float mean = sum_of(mlp.inner, [&](int i) { return gates[i]; }) / count;
    const float squares = sum_of(mlp.inner, [&](int i) { return (gates[i] - mean) * (gates[i] - mean); });
    cutoffs_[row] = mean + std::sqrt(squares / count) * mlp.sparsity_cutoff;
}

// What some rows' gates have beyond their cutoffs.
void Decoder::take_gates(const Mlp& mlp, int first, int count, int column, int channels, float* gate) const {
    for (int i = 0; i < count; ++i) {
        const float* from = gates_ + static_cast<std::size_t>(first + i) * mlp.inner + column;
        for (int j = 0; j < channels; ++j) gate[i * channels + j] = std::max(from[j] - cutoffs_[first + i], 0.0f);
    }
}

int Decoder::channel_units(const Mlp& mlp) const {
    return mlp.inner / (mlp.inner % kGroup == 0 ? kGroup : kTile);
}

void Decoder::mlp_up(const Layer& layer, int piece, int thread) {
    const Mlp& mlp = layer.mlp;
    const int units = channel_units(mlp), tiles = mlp.inner / units / kTile;
    const Part part(units, piece, std::min(8 * pool_.size(), units));
    gate_up(mlp, {part.first * tiles, part.stop * tiles}, part.first * tiles * kTile, normed_, 0, num_rows_,
            activated_.of(mlp.down), thread, layer.mlp_gate.weight ? mlp_gates_ : nullptr);
}

// Some tiles of gate and up, whose channels are columns from `column` on, of rows first..stop: activated, multiplied by
// the rows' `shares` unless null, and quantized for `down` while they are at hand. Of few rows there are many channels
// at a time, since their weights are read as one stream.
void Decoder::gate_up(const Mlp& mlp, const Part& part, int column, const Rows& in, int first, int stop,
                      const Rows& out, int thread, const float* shares) {
    const int unit = mlp.inner / channel_units(mlp) / kTile, at_once = std::clamp(stop - first, 1, kRowBlock),
              most = std::max(1, kRowBlock / at_once) * unit;
    const bool is_gated = mlp.gate.tiles;
    float* up = scratch_ + thread * scratch_stride_;
    float* gate = up + kRowBlock * kGroup;
    for (int tile = part.first, tiles; tile < part.stop; tile += tiles) {
        tiles = std::min(most, part.stop - tile);
        const int from = column + (tile - part.first) * kTile, channels = tiles * kTile;
        const std::size_t stride = channels;
        for (int row = first; row < stop; row += kRowBlock) {
            const int count = std::min(kRowBlock, stop - row);
            kernels_.linear(mlp.up, tile, tiles, in, row, count, {up, stride});
            if (mlp.has_sparse_activation)
                take_gates(mlp, row, count, from, channels, gate);
            else if (is_gated)
                kernels_.linear(mlp.gate, tile, tiles, in, row, count, {gate, stride});
            kernels_.activate(shape_.activation, is_gated ? gate : up, is_gated ? up : nullptr,
                              count * channels, up);
            // Quantized rows are read as codes only: their floats stay here, in the cache.
            for (int i = 0; i < count; ++i) {
                if (shares) kernels_.scale(up + i * stride, channels, shares[row + i]);
                put(mlp.down, up + i * stride, out, row + i, from, channels);
            }
        }
    }
}

namespace {

// Router logits become what is compared, and what weights are made of. A softmax alone stays as it is: its
// logits have the order of its scores.
void to_scores(const ExpertsShape& shape, float* logits) {
    if (shape.is_sigmoid) {
        for (int i = 0; i < shape.num; ++i) logits[i] = ieee::sigmoid(logits[i]);
    } else if (shape.has_choice_bias) {
        const float largest = *std::max_element(logits, logits + shape.num);
        float total = 0.0f;
        for (int i = 0; i < shape.num; ++i) total += logits[i] = ieee::exp(logits[i] - largest);
        for (int i = 0; i < shape.num; ++i) logits[i] /= total;
    }
}

// The best groups of neighbours, by their one or two best scores.
template <class Score>
void choose_groups(const ExpertsShape& shape, const Score& score, Scored* groups) {
    const int size = shape.num / shape.num_groups, count = std::min(shape.group_best, size);
    std::fill_n(groups, shape.num_active_groups, kNoScore);
    for (int group = 0; group < shape.num_groups; ++group) {
        Scored best[2]{kNoScore, kNoScore};
        for (int i = group * size; i < (group + 1) * size; ++i) insert({score(i), i}, best, count);
        const float sum = count == 2 ? best[0].value + best[1].value : best[0].value;
        insert({sum, group}, groups, shape.num_active_groups);
    }
    std::sort(groups, groups + shape.num_active_groups,
              [](const Scored& a, const Scored& b) { return a.id < b.id; });
}

}  // namespace

// The experts of the largest scores, of equal ones the first, ascending.
void Decoder::choose_experts(int index, int row) {
    const ExpertsShape& shape = experts_of(index);
    const Linear& router = layers_[index].router;
    float* scores = router_logits_ + static_cast<std::size_t>(row) * router_stride_;
    kernels_.linear(router, 0, router.num_tiles(), normed_, row, 1,
                    {scores, static_cast<std::size_t>(router_stride_)});
    to_scores(shape, scores);
    const float* bias = layers_[index].choice_bias.weight;
    const auto score = [&](int i) { return bias ? scores[i] + bias[i] : scores[i]; };
    Scored groups[kMostActive]{{0.0f, 0}}, best[kMostActive]{};
    if (shape.num_groups > 1) choose_groups(shape, score, groups);
    std::fill_n(best, shape.num_active, kNoScore);
    for (int g = 0, size = shape.num / shape.num_groups; g < shape.num_active_groups; ++g)
        for (int i = groups[g].id * size; i < (groups[g].id + 1) * size; ++i)
            insert({score(i), i}, best, shape.num_active);
    int* chosen = routing_.experts + row * shape.num_active;
    for (int i = 0; i < shape.num_active; ++i) chosen[i] = best[i].id;
    std::sort(chosen, chosen + shape.num_active);
    weigh_experts(index, scores, best[0].value, chosen, routing_.weights + row * shape.num_active);
}

// Weights of chosen experts: their scores, divided by the sum of these or, of a softmax, by that of all.
void Decoder::weigh_experts(int index, const float* scores, float largest, const int* chosen, float* weights) {
    const ExpertsShape& shape = experts_of(index);
    const bool is_softmax = !shape.is_sigmoid && !shape.has_choice_bias;
    float total = 0.0f;
    for (int i = 0; i < shape.num_active; ++i) {
        weights[i] = is_softmax ? ieee::exp(scores[chosen[i]] - largest) : scores[chosen[i]];
        total += weights[i];
    }
    total += shape.sum_offset;
    if (!shape.is_renormalized) {
        total = is_softmax ? 0.0f : 1.0f;
        for (int i = 0; is_softmax && i < shape.num; ++i) total += ieee::exp(scores[i] - largest);
    }
    const float* scale = layers_[index].experts_scale.weight;
    for (int i = 0; i < shape.num_active; ++i)
        weights[i] = weights[i] / total * (scale ? scale[chosen[i]] : 1.0f) * shape.scale;
}

void Decoder::place_pairs(int index) {
    const ExpertsShape& shape = experts_of(index);
    const int count = num_pairs(index);
    int *firsts = routing_.firsts, *stops = routing_.stops;
    std::fill_n(stops, shape.num, 0);
    for (int i = 0; i < count; ++i) ++stops[routing_.experts[i]];
    routing_.num_active = 0;
    for (int expert = 0, first = 0; expert < shape.num; ++expert) {
        const int pairs = stops[expert];
        firsts[expert] = stops[expert] = first;
        first += padded_rows(pairs);
        if (pairs > 0) routing_.active[routing_.num_active++] = expert;
    }
    for (int i = 0; i < count; ++i) {
        const int slot = stops[routing_.experts[i]]++;
        routing_.slots[i] = slot;
        routing_.rows[slot] = i / shape.num_active;
        routing_.slot_weights[slot] = routing_.weights[i];
    }
}

// A pair's input, where its expert reads it.
void Decoder::gather_pair(int index, int pair) {
    const Layer& layer = layers_[index];
    const std::size_t width = shape_.hidden_size;
    const int slot = routing_.slots[pair];
    const float* from = layer.experts_norm.weight ? experts_input_ : normed_.x;
    put(layer.experts.up, from + routing_.rows[slot] * width, gathered_, slot, 0, shape_.hidden_size);
}

void Decoder::experts_up(int index, int piece, int thread) {
    const Mlp& experts = layers_[index].experts;
    const int each = channel_units(experts), tiles = experts.inner / each / kTile;
    const Part part(routing_.num_active * each, piece, 8 * pool_.size());
    const Rows rows = expert_rows_.of(experts.down);
    for (int unit = part.first, stop; unit < part.stop; unit = stop) {
        const int index = unit / each, expert = routing_.active[index], tile = unit % each * tiles;
        stop = std::min(part.stop, (index + 1) * each);
        const int first = expert * experts.inner / kTile + tile;
        gate_up(experts, {first, first + (stop - unit) * tiles}, tile * kTile, gathered_, routing_.firsts[expert],
                routing_.stops[expert], rows, thread);
    }
}

// Some columns of what the experts add.
void Decoder::experts_down(int index, int piece, int thread) {
    const Linear& down = layers_[index].experts.down;
    const int tiles = shape_.hidden_size / kTile;
    const bool has_norms = layers_[index].experts_norm.weight,
               is_first = has_norms || (added_ && !layer_shape(index).has_mlp);
    const float multiplier = added_ ? 1.0f : shape_.residual_multiplier;
    const Part part(tiles, piece, std::min(4 * pool_.size(), tiles));
    float* aside = scratch_ + thread * scratch_stride_;
    const Rows inputs = expert_rows_.of(down);
    for (int tile = part.first; tile < part.stop; tile += kAddedTiles) {
        const int count = std::min(kAddedTiles, part.stop - tile), columns = count * kTile;
        Output to = residual(tile);
        if (has_norms) to.out = experts_added_ + tile * kTile;
        for (int row = 0; is_first && row < num_rows_; ++row)
            std::fill_n(to.out + row * to.stride, columns, 0.0f);
        for (int i = 0; i < routing_.num_active; ++i) {
            const int expert = routing_.active[i], stop = routing_.stops[expert];
            for (int slot = routing_.firsts[expert]; slot < stop; slot += kRowBlock) {
                const int rows = std::min(kRowBlock, stop - slot);
                kernels_.linear(down, expert * tiles + tile, count, inputs, slot, rows,
                                {aside, static_cast<std::size_t>(columns)});
                for (int j = 0; j < rows; ++j) {
                    const float weight = multiplier * routing_.slot_weights[slot + j];
                    float* x = to.out + routing_.rows[slot + j] * to.stride;
                    for (int k = 0; k < columns; ++k) x[k] += weight * aside[j * columns + k];
                }
            }
        }
    }
}

}  // namespace forerun
