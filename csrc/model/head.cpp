// The head: logits of hidden states, the largest of them, or some columns; and one linear layer by
// itself.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "model/model.h"

namespace forerun {
const Linear& Decoder::head_weights() const { return head_.tiles ? head_ : embed_; }

void Decoder::run_head(const float* hidden, int num_rows, int num_units,
                       const Wanted& wanted,
                       const std::function<void(int, const Part&)>& piece) {
    if (!is_checked_) check();
    if (rows_of_) {  // which may have been moved since
        const Linear& now = rows_of_->head_weights();
        embed_.tiles = now.tiles;
        embed_.bias = now.bias;
        embed_.flat = now.flat;
    }
    if (num_rows == 0 || num_units == 0) return;
    num_rows_ = num_rows;
    head_input_ = hidden;
    head_units_ = num_units;
    head_piece_ = &piece;
    runtime_.lay_out([&](Scratch& scratch) { lay_out_head(scratch, wanted); });
    const std::size_t num_sums = static_cast<std::size_t>(num_rows) * block_stride_,
                      num_scored = static_cast<std::size_t>(pool_.size()) * num_rows * wanted.k;
    std::fill_n(block_largest_, num_sums, -std::numeric_limits<float>::infinity());
    std::fill_n(block_sum_, num_sums, 0.0f);
    std::fill_n(largest_, num_scored, kNoScore);
    for (int row = 0; num_rows_ <= kFewRows && row < num_rows_; ++row) read_row(row);
    const int pieces[] = {row_pieces(num_rows_), std::min(32 * pool_.size(), num_units)};
    pool_.run(
        [](void* self, Worker& worker) { static_cast<Decoder*>(self)->run_head_phases(worker); },
        this, pieces);
}

void Decoder::lay_out_head(Scratch& scratch, const Wanted& wanted) {
    block_stride_ = wanted.log_sums ? (num_blocks() + kTile - 1) / kTile * kTile : 0;
    scratch_stride_ = kHeadRows * kHeadTiles * kTile + kTile;  // `find` reads further
    const std::size_t rows = num_rows_, threads = pool_.size();
    normed_ = scratch.take_rows(num_rows_, shape_.hidden_size);
    scratch_ = scratch.take<float>(threads * scratch_stride_);
    largest_ = scratch.take<Scored>(threads * rows * wanted.k);
    block_largest_ = scratch.take<float>(rows * block_stride_);
    block_sum_ = scratch.take<float>(rows * block_stride_);
}

void Decoder::read_row(int row) {
    const std::size_t width = shape_.hidden_size;
    const float* source = head_input_ + row * width;
    std::memcpy(normed_.x + row * width, source, width * sizeof(float));
    if (!head_weights().is_float()) quantize(head_weights(), source, normed_, row, 0, shape_.hidden_size);
}

void Decoder::run_head_phases(Worker& worker) {
    worker.each([&](int row) { read_row(row); });
    worker.each([&](int piece) {
        const int num_pieces = std::min(32 * pool_.size(), head_units_);
        (*head_piece_)(worker.thread, Part(head_units_, piece, num_pieces));
    });
}

// Calls take(row, first_id, count, logits) for all rows with the logits of a few tiles at a time.
template <class Take>
void Decoder::head_tiles(int thread, const Part& tiles, const Take& take) {
    constexpr std::size_t stride = kHeadTiles * kTile;
    float* aside = scratch_ + thread * scratch_stride_;
    for (int tile = tiles.first; tile < tiles.stop; tile += kHeadTiles) {
        const int num_tiles = std::min(kHeadTiles, tiles.stop - tile), first_id = tile * kTile,
                  count = std::min(num_tiles * kTile, shape_.vocab_size - first_id);
        for (int first = 0; first < num_rows_; first += kHeadRows) {
            const int rows = std::min(kHeadRows, num_rows_ - first);
            kernels_.linear(head_weights(), tile, num_tiles, normed_, first, rows, {aside, stride});
            for (int i = 0; i < rows; ++i) {
                float* logits = aside + i * stride;
                if (shape_.logits_cap > 0.0f)
                    kernels_.cap(logits, num_tiles * kTile, shape_.logits_cap);
                if (shape_.logits_divisor != 1.0f)
                    for (int j = 0; j < count; ++j) logits[j] /= shape_.logits_divisor;
                take(static_cast<std::size_t>(first + i), first_id, count, logits);
            }
        }
    }
}

void Decoder::head(const float* hidden, int num_rows, float* logits) {
    const Runtime::PassLock lock(runtime_);
    run_head(hidden, num_rows, head_weights().num_tiles(), {}, [&](int thread, const Part& tiles) {
        head_tiles(thread, tiles, [&](std::size_t row, int first_id, int count, const float* from) {
            std::memcpy(logits + row * shape_.vocab_size + first_id, from, count * sizeof(float));
        });
    });
}

// Pieces are whole blocks of tiles, so that the sums do not depend on how many threads there are.
void Decoder::topk(const float* hidden, int num_rows, int k, std::int64_t* ids, float* values,
                   float* log_sums, float* all) {
    const Runtime::PassLock lock(runtime_);
    const std::size_t num = static_cast<std::size_t>(num_rows) * k;
    const auto take = [&](int thread, std::size_t row, int first_id, int count, float* logits) {
        if (all) std::memcpy(all + row * shape_.vocab_size + first_id, logits, count * sizeof(float));
        Scored* list = largest_ + thread * num + row * k;
        if (log_sums) {
            const std::size_t block = row * block_stride_ + first_id / (kHeadTiles * kTile);
            const int whole = (count + kTile - 1) / kTile * kTile;
            std::fill(logits + count, logits + whole, -std::numeric_limits<float>::infinity());
            block_sum_[block] =
                kernels_.exp_sum(logits, nullptr, whole, block_largest_ + block);
        }
        const auto next = [&](int i) { return kernels_.find(logits, i, count, list[k - 1].value); };
        for (int i = next(0); i < count; i = next(i + 1))
            insert({logits[i], first_id + i}, list, k);
    };
    const int num_tiles = head_weights().num_tiles();
    run_head(hidden, num_rows, num_blocks(), {k, log_sums != nullptr},
             [&](int thread, const Part& blocks) {
                 const Part tiles(blocks.first * kHeadTiles,
                                  std::min(blocks.stop * kHeadTiles, num_tiles));
                 head_tiles(thread, tiles,
                            [&](std::size_t row, int first_id, int count, float* logits) {
                                take(thread, row, first_id, count, logits);
                            });
             });
    for (std::size_t first = 0; first < num; first += k) {
        Scored* list = largest_ + first;
        for (int thread = 1; thread < pool_.size(); ++thread)
            for (int i = 0; i < k; ++i) insert(list[thread * num + i], list, k);
        for (int i = 0; i < k; ++i) {
            ids[first + i] = list[i].id;
            values[first + i] = list[i].value;
        }
    }
    for (int row = 0; log_sums && row < num_rows; ++row) log_sums[row] = log_sum(row);
}

// The logarithm of a row's sum of e^logit, from those of its blocks.
float Decoder::log_sum(int row) const {
    const std::size_t first = static_cast<std::size_t>(row) * block_stride_;
    float largest;
    const float total = kernels_.exp_sum(block_largest_ + first, block_sum_ + first, block_stride_,
                                         &largest);
    if (std::isnan(total) || std::isinf(largest)) return std::isnan(total) ? total : largest;
    return static_cast<float>(largest + std::log(static_cast<double>(total)));
}

// Whole tiles are computed for the columns in them: ascending ids are the fastest.
void Decoder::head_rows(const float* hidden, int num_rows, std::span<const std::int64_t> ids,
                        float* logits) {
    for (std::int64_t id : ids) check_id(id);
    const Runtime::PassLock lock(runtime_);
    run_head(hidden, num_rows, static_cast<int>(ids.size()), {}, [&](int thread, const Part& part) {
        for (int i = part.first, stop; i < part.stop; i = stop) {
            const int tile = static_cast<int>(ids[i] / kTile);
            for (stop = i + 1; stop < part.stop && ids[stop] / kTile == tile;) ++stop;
            head_tiles(thread, {tile, tile + 1}, [&](std::size_t row, int, int, const float* from) {
                for (int j = i; j < stop; ++j) logits[row * ids.size() + j] = from[ids[j] % kTile];
            });
        }
    });
}

void Decoder::apply(const Linear& linear, const float* x, int num_rows, float* out) {
    const Runtime::PassLock lock(runtime_);
    Rows rows;
    const std::size_t width = linear.num_read();
    runtime_.lay_out([&](Scratch& scratch) {
        rows = scratch.take_rows(num_rows, linear.num_read(), linear.num_in);
    });
    std::copy_n(x, num_rows * width, rows.x);
    if (!linear.is_float())
        for (int row = 0; row < num_rows; ++row)
            quantize(linear, x + row * width, rows, row, 0, linear.num_read());
    kernels_.linear(linear, 0, linear.num_tiles(), rows, 0, num_rows,
                    {out, static_cast<std::size_t>(linear.num_tiles() * kTile)});
}

}  // namespace forerun
