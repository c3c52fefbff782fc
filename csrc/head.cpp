// The head: logits of hidden states, or only the likeliest token of each; and one linear layer by
// itself.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model.h"

namespace forerun {

void Best::see(const float* logits, int first_id, int count) {
    int is_news = 0;  // most blocks hold nothing better, and many lanes at a time find that out
    for (int i = 0; i < count; ++i) is_news |= !(logits[i] <= value);
    if (!is_news || id < 0) return;
    for (int i = 0; i < count; ++i) see({logits[i], std::isnan(logits[i]) ? -1 : first_id + i});
}

void Best::see(const Best& other) {
    if (id < 0) return;
    if (other.id < 0 || other.value > value || (other.value == value && other.id < id))
        *this = other;
}

const Linear& Decoder::head_weights() const {
    return head_.linear.tiles ? head_.linear : embed_.linear;
}

void Decoder::run_head(const HeadCall& call) {
    if (call.num_rows == 0) return;
    reserve(call.num_rows, 0);
    head_call_ = call;
    std::fill_n(best_.as<Best>(),
                static_cast<std::size_t>(pool_.size()) * static_cast<std::size_t>(capacity_),
                Best{});
    const int pieces[] = {call.num_rows, std::min(32 * pool_.size(), head_weights().num_tiles())};
    pool_.run([](void* self, Worker& worker) { static_cast<Decoder*>(self)->run_head_phases(worker); }, this,
              pieces);
}

void Decoder::run_head_phases(Worker& worker) {
    const std::size_t width = static_cast<std::size_t>(shape_.hidden_size);
    worker.each([&](int row) {
        const float* source = head_call_.hidden + static_cast<std::size_t>(row) * width;
        std::memcpy(normed_.rows.x + static_cast<std::size_t>(row) * width, source, width * 4);
        if (!head_weights().is_float())
            kernels_.quantize(source, normed_.rows, row, 0, shape_.hidden_size);
    });
    worker.each([&](int piece) {
        const Linear& weights = head_weights();
        const Part part(weights.num_tiles(), piece,
                        std::min(32 * pool_.size(), weights.num_tiles()));
        for (int tile = part.first; tile < part.stop; tile += kHeadTiles)
            head_tiles(worker.thread, tile, std::min(kHeadTiles, part.stop - tile));
    });
}

// A few tiles' logits of all rows: computed aside, then copied out or searched.
void Decoder::head_tiles(int thread, int tile, int num_tiles) {
    constexpr std::size_t stride = kHeadTiles * kTile;
    const HeadCall& call = head_call_;
    float* aside = scratch_.as<float>() + static_cast<std::size_t>(thread) * scratch_stride_;
    const int first_id = tile * kTile,
              count = std::min(num_tiles * kTile, shape_.vocab_size - first_id);
    for (int first = 0; first < call.num_rows; first += kHeadRows) {
        const int rows = std::min(kHeadRows, call.num_rows - first);
        kernels_.linear(head_weights(), tile, num_tiles, normed_.rows, first, rows,
                        {aside, stride, false, 1.0f});
        for (int i = 0; i < rows; ++i) {
            float* logits = aside + static_cast<std::size_t>(i) * stride;
            const std::size_t row = static_cast<std::size_t>(first + i);
            if (shape_.logits_divisor != 1.0f)
                for (int j = 0; j < count; ++j) logits[j] /= shape_.logits_divisor;
            if (!call.logits) {
                best_
                    .as<Best>()[static_cast<std::size_t>(thread) *
                                    static_cast<std::size_t>(capacity_) +
                                row]
                    .see(logits, first_id, count);
                continue;
            }
            float* out = call.logits + row * static_cast<std::size_t>(shape_.vocab_size) + first_id;
            std::memcpy(out, logits, static_cast<std::size_t>(count) * sizeof(float));
        }
    }
}

void Decoder::head(const float* hidden, int num_rows, float* logits) {
    const std::scoped_lock lock(busy_);
    run_head({hidden, num_rows, logits});
}

void Decoder::argmax(const float* hidden, int num_rows, std::int64_t* ids) {
    const std::scoped_lock lock(busy_);
    run_head({hidden, num_rows, nullptr});
    for (int row = 0; row < num_rows; ++row) {
        Best all;
        for (int thread = 0; thread < pool_.size(); ++thread)
            all.see(best_.as<Best>()[thread * capacity_ + row]);
        ids[row] = all.id;
    }
}

void Decoder::apply(const Linear& linear, const float* x, int num_rows, float* out) const {
    const std::size_t width = static_cast<std::size_t>(linear.num_in),
                      stride = static_cast<std::size_t>(linear.num_tiles()) * kTile;
    const RowsMemory made = make_rows(num_rows, linear.num_in);
    std::copy_n(x, static_cast<std::size_t>(num_rows) * width, made.rows.x);
    if (!linear.is_float())
        for (int row = 0; row < num_rows; ++row)
            kernels_.quantize(x + static_cast<std::size_t>(row) * width, made.rows, row, 0,
                              linear.num_in);
    kernels_.linear(linear, 0, linear.num_tiles(), made.rows, 0, num_rows,
                    {out, stride, false, 1.0f});
}

}  // namespace forerun
