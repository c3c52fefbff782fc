// Per-layer embeddings, Gemma 3n's and 4's: each token brings a vector of its own for every layer, a row
// of a table mixed with a projection of its embedding. A layer ends with it: gated by the row, projected
// and added.

#include <algorithm>
#include <array>
#include <cmath>

#include "model/model.h"

namespace forerun {

// Rows are embedded, projected for all layers, and mixed with the table's.
void Decoder::run_inputs(Worker& worker) {
    worker.each([&](int row) {
        start(row, x_ + static_cast<std::size_t>(row) * shape_.hidden_size);
        norm(row, {}, std::array<const Linear*, 1>{&per_layer_proj_});
    });
    worker.each([&](int piece) {
        const int tiles = per_layer_proj_.num_tiles();
        const Part part(tiles, piece, std::min(4 * pool_.size(), tiles));
        kernels_.linear(per_layer_proj_, part.first, part.stop - part.first, normed_, 0, num_rows_,
                        {inputs_of_layers_ + part.first * kTile,
                         static_cast<std::size_t>(per_layer_proj_.num_out)});
    });
    worker.each([&](int row) { mix_inputs(row, worker.thread); });
}

void Decoder::mix_inputs(int row, int thread) {
    const int width = shape_.per_layer_width, total = per_layer_proj_.num_out;
    const float shrink = 1.0f / std::sqrt(static_cast<float>(shape_.hidden_size)),
                grow = std::sqrt(static_cast<float>(width)), half = std::sqrt(0.5f);
    float* inputs = inputs_of_layers_ + static_cast<std::size_t>(row) * total;
    float* table = scratch_ + thread * scratch_stride_;
    const int token = tokens_[row] < per_layer_embed_.num_out ? tokens_[row] : 0;
    unpack_row(per_layer_embed_, token, table);
    kernels_.scale(inputs, total, shrink);
    for (int first = 0; first < total; first += width)
        kernels_.norm(inputs + first, per_layer_norm_, width, inputs + first);
    for (int i = 0; i < total; ++i) inputs[i] = (inputs[i] + table[i] * grow) * half;
}

void Decoder::begin_inputs(int index, int row) {
    const Layer& layer = layers_[index];
    add_mlp(row, layer);
    shape_.streams.exists() ? correct_streams(layer, row) : norm(row, {}, std::array{&layer.inp_gate});
}

void Decoder::run_per_layer(Worker& worker, int index) {
    const Layer& layer = layers_[index];
    worker.each([&](int piece) { gate_inputs(index, piece, worker.thread); });
    end_sublayer(
        worker,
        [&](int piece) { add_linear(layer.inp_proj, gated_inputs_.of(layer.inp_proj), piece); },
        [&](int row) { begin_layer(index + 1, row); });
}

// Some channels of the gate, times the layer's inputs.
void Decoder::gate_inputs(int index, int piece, int thread) {
    const Layer& layer = layers_[index];
    const int width = shape_.per_layer_width, units = width / kGroup;
    const Part part(units, piece, std::min(4 * pool_.size(), units));
    put_groups(layer.inp_gate, layer.inp_proj, gated_inputs_, part, thread, [&](int row, int column, float* x) {
        const std::size_t first = (static_cast<std::size_t>(row) * shape_.num_layers + index) * width + column;
        kernels_.activate(shape_.activation, x, inputs_of_layers_ + first, kGroup, x);
    });
}

}  // namespace forerun
