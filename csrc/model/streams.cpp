// Several streams of states of each row, AltUp (arXiv 2301.13310), of which layers compute the first, x_; and LAuReL
// (arXiv 2411.07501), a product of two narrow matrices beside attention. Gemma 3n has both. Before a layer all streams
// are predicted, behind it corrected; the others begin and end as projections. Slot 0 of a
// row of `streams_` holds the first stream as it was predicted.
//
// `run_streams` stands in place of `run`'s layers, `add_to_streams` in that of `add_sublayer`, `correct_streams` before
// the layer's embeddings.

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "kernels/math.h"
#include "model/model.h"
#include "model/sums.h"

namespace forerun {
namespace {

constexpr float kLeast = 1e-5f;  // of a mean square that something is divided by

float mean_square(const float* x, int width) { return dot(x, x, width) / static_cast<float>(width); }

// A row as large as another one, whose root mean square is `size`.
void resize(const Kernels& kernels, float* x, int width, float size) {
    kernels.scale(x, width, size / std::sqrt(std::max(mean_square(x, width), kLeast)));
}

}  // namespace

void Decoder::check_streams() const {
    const StreamsShape& streams = shape_.streams;
    if (!streams.exists()) return;
    const bool is_plain = std::ranges::all_of(shape_.layers, [](const LayerShape& layer) {
        return layer.has_mlp && layer.has_mixer && layer.experts.num == 0;
    });
    if (streams.num > kMostStreams || streams.laurel_rank % kGroup)
        throw std::invalid_argument("there may be 8 streams, and LAuReL needs a rank of a multiple of 32");
    if (shape_.per_layer_width == 0 || !shape_.norms_before || !shape_.norms_after || shape_.latent.exists() ||
        shape_.is_parallel || shape_.has_layer_scales || !is_plain)
        throw std::invalid_argument("streams in other layers than Gemma 3n's are unknown");
}

void Decoder::lay_out_streams(Scratch& scratch) {
    const StreamsShape& s = shape_.streams;
    const std::size_t rows = s.exists() ? num_rows_ : 0, width = shape_.hidden_size;
    streams_ = scratch.take<float>(rows * s.num * width);
    laurel_ = scratch.take<float>(rows * width);
    laurel_input_ = scratch.take_rows(static_cast<int>(rows), s.laurel_rank);
    stream_rows_ = scratch.take_rows(s.exists() ? (s.num - 1) * stream_places() : 0, shape_.hidden_size);
}

float* Decoder::stream(int row, int index) const {
    return streams_ + (static_cast<std::size_t>(row) * shape_.streams.num + index) * shape_.hidden_size;
}

int Decoder::stream_pieces() const { return std::min(4 * pool_.size(), altup_proj_.num_tiles()); }

// All layers, between a prediction and a correction each, with LAuReL beside their attention.
void Decoder::run_streams(Worker& worker) {
    worker.each([&](int row) { norm(row, {}, std::array<const Linear*, 1>{&altup_proj_}); });
    worker.each_and_rows([&](int piece) { project_streams(piece); }, num_rows_, [&](int row) { begin_streams(row); });
    for (int i = 0; i < shape_.num_layers; ++i) {
        worker.each([&](int row) { predict_streams(layers_[i], row); });
        run_laurel(worker, layers_[i]);
        run_layer(worker, i);
    }
    end_streams(worker);
}

// Pieces of the phases of `run_streams`.
void Decoder::plan_streams() {
    const int rows = row_pieces(num_rows_), rank_units = shape_.streams.laurel_rank / kGroup;
    add_phases({num_rows_, stream_pieces(), rows});
    for (int i = 0; i < shape_.num_layers; ++i) {
        add_phases({num_rows_, laurel_pieces(rank_units), laurel_pieces(shape_.hidden_size / kTile), rows});
        plan_layer(i);
    }
    add_phases({num_rows_, stream_pieces(), rows});
}

// The other streams of all rows, from their embeddings.
void Decoder::project_streams(int piece) {
    const Part part(altup_proj_.num_tiles(), piece, stream_pieces());
    kernels_.linear(altup_proj_, part.first, part.stop - part.first, normed_, 0, num_rows_,
                    {stream(0, 1) + part.first * kTile,
                     static_cast<std::size_t>(shape_.streams.num) * shape_.hidden_size});
}

void Decoder::begin_streams(int row) {
    const int width = shape_.hidden_size;
    const float size = std::sqrt(mean_square(x_ + static_cast<std::size_t>(row) * width, width));
    for (int i = 1; i < shape_.streams.num; ++i) resize(kernels_, stream(row, i), width, size);
}

// The numbers that decide on a row's shares: of x_, whose normed row is overwritten.
void Decoder::route_streams(const Layer& layer, int row, float* routed) {
    const int width = shape_.hidden_size;
    float* normed = normed_.x + static_cast<std::size_t>(row) * width;
    kernels_.norm(x_ + static_cast<std::size_t>(row) * width, layer.altup_router_norm, width, normed);
    for (int i = 0; i < shape_.streams.num; ++i)
        routed[i] = ieee::tanh(dot(normed, layer.altup_router.weight + static_cast<std::size_t>(i) * width, width));
}

// A product of a matrix (count, streams) with a row's numbers.
void Decoder::mix_routed(const Norm& matrix, const float* routed, int count, float* out) const {
    const int num = shape_.streams.num;
    for (int i = 0; i < count; ++i) {
        out[i] = 0.0f;
        for (int j = 0; j < num; ++j) out[i] += routed[j] * matrix.weight[i * num + j];
    }
}

// All streams of a row, each with a mixture of all added; then what attention and LAuReL read.
void Decoder::predict_streams(const Layer& layer, int row) {
    const int num = shape_.streams.num, width = shape_.hidden_size;
    float routed[kMostStreams], shares[kMostStreams * kMostStreams];
    route_streams(layer, row, routed);
    mix_routed(layer.altup_predict, routed, num * num, shares);
    float* x = x_ + static_cast<std::size_t>(row) * width;
    float* streams = stream(row, 0);
    std::copy_n(x, width, streams);
    for (int column = 0; column < width; column += kTile) {
        float old[kMostStreams][kTile];
        for (int i = 0; i < num; ++i) std::copy_n(streams + i * width + column, kTile, old[i]);
        for (int to = 0; to < num; ++to) {
            float* out = streams + to * width + column;
            for (int from = 0; from < num; ++from)
                for (int lane = 0; lane < kTile; ++lane) out[lane] += old[from][lane] * shares[to * num + from];
        }
    }
    std::copy_n(streams, width, x);
    norm(row, layer.attn_norm, std::array{&layer.q, &layer.k, &layer.v, &layer.attn_gate, &layer.laurel_left});
}

// All streams of a row, each with its share of what the layer has changed in the first; then what the gate of its
// embeddings reads.
void Decoder::correct_streams(const Layer& layer, int row) {
    const int num = shape_.streams.num, width = shape_.hidden_size;
    float routed[kMostStreams], shares[kMostStreams];
    route_streams(layer, row, routed);
    mix_routed(layer.altup_correct, routed, num, shares);
    float* x = x_ + static_cast<std::size_t>(row) * width;
    const float* predicted = stream(row, 0);
    for (int i = 0; i < width; ++i) x[i] -= predicted[i];
    for (int to = 1; to < num; ++to) {
        float* out = stream(row, to);
        for (int i = 0; i < width; ++i) out[i] += x[i] * (shares[to] + 1.0f);
    }
    for (int i = 0; i < width; ++i) x[i] = predicted[i] + x[i] * (shares[0] + 1.0f);
    float* read = normed_.x + static_cast<std::size_t>(row) * width;
    for (int i = 0; i < width; ++i) read[i] = x[i] * layer.altup_scale.weight[i];
    hand_normed(row, std::array<const Linear*, 1>{&layer.inp_gate});
}

// What attention gave, normed, is added to the first stream; what the layer's embeddings gave to all others.
void Decoder::add_to_streams(int row, int sublayer) {
    const Layer& layer = layers_[sublayer / 2];
    const int width = shape_.hidden_size;
    const std::size_t first = static_cast<std::size_t>(row) * width;
    float* added = added_ + first;
    if (sublayer % 2 == 0) {
        add_normed(row, layer.attn_out_norm, added);
        return kernels_.scale(x_ + first, width, std::sqrt(0.5f));
    }
    kernels_.norm(added, layer.inp_norm, width, added);
    for (int to = 1; to < shape_.streams.num; ++to) {
        float* out = stream(row, to);
        for (int i = 0; i < width; ++i) out[i] += added[i];
    }
}

void Decoder::run_laurel(Worker& worker, const Layer& layer) {
    worker.each([&](int piece) {
        const int units = shape_.streams.laurel_rank / kGroup;
        put_groups(layer.laurel_left, layer.laurel_right, laurel_input_, {units, piece, laurel_pieces(units)},
                   worker.thread, [](int, int, float*) {});
    });
    const auto widen = [&](int piece) {
        const int tiles = layer.laurel_right.num_tiles();
        const Part part(tiles, piece, laurel_pieces(tiles));
        kernels_.linear(layer.laurel_right, part.first, part.stop - part.first, laurel_input_.of(layer.laurel_right),
                        0, num_rows_, {laurel_ + part.first * kTile, static_cast<std::size_t>(shape_.hidden_size)});
    };
    worker.each_and_rows(widen, num_rows_, [&](int row) { add_laurel(layer, row); });
}

// What attention reads is added, with what LAuReL made of it.
void Decoder::add_laurel(const Layer& layer, int row) {
    const int width = shape_.hidden_size;
    const std::size_t first = static_cast<std::size_t>(row) * width;
    float *x = x_ + first, *made = laurel_ + first;
    kernels_.norm(made, layer.laurel_norm, width, made);
    for (int i = 0; i < width; ++i) x[i] += normed_.x[first + i] + made[i];
}

// Behind the last layer: the other streams are projected, and all are joined.
void Decoder::end_streams(Worker& worker) {
    worker.each([&](int row) {
        const Rows rows = stream_rows_.of(altup_unembed_);
        for (int i = 1; i < shape_.streams.num; ++i)
            put(altup_unembed_, stream(row, i), rows, (i - 1) * stream_places() + row, 0, shape_.hidden_size);
    });
    worker.each_and_rows([&](int piece) { unembed_streams(piece); }, num_rows_, [&](int row) { join_streams(row); });
}

void Decoder::unembed_streams(int piece) {
    const int tiles = shape_.hidden_size / kTile;
    const Part part(altup_unembed_.num_tiles(), piece, stream_pieces());
    for (int tile = part.first, stop; tile < part.stop; tile = stop) {
        const int from = tile / tiles;
        stop = std::min(part.stop, (from + 1) * tiles);
        kernels_.linear(altup_unembed_, tile, stop - tile, stream_rows_.of(altup_unembed_), from * stream_places(),
                        num_rows_,
                        {stream(0, from + 1) + (tile - from * tiles) * kTile,
                         static_cast<std::size_t>(shape_.streams.num) * shape_.hidden_size});
    }
}

// The mean of all streams of a row, as large as the first.
void Decoder::join_streams(int row) {
    const int num = shape_.streams.num, width = shape_.hidden_size;
    const std::size_t first = static_cast<std::size_t>(row) * width;
    float* x = x_ + first;
    const float size = std::sqrt(mean_square(x, width));
    for (int i = 1; i < num; ++i) {
        float* other = stream(row, i);
        resize(kernels_, other, width, size);
        for (int j = 0; j < width; ++j) x[j] += other[j];
    }
    kernels_.scale(x, width, 1.0f / static_cast<float>(num));
    kernels_.norm(x, final_norm_, width, hidden_ + first);
}

}  // namespace forerun
