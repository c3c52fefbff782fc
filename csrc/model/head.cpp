#include "model/head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace forerun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

Head::Head(Runtime& runtime, const HeadShape& shape, const Linear& weights, const Linear* embedding)
    : runtime_(runtime),
      kernels_(runtime.kernels),
      pool_(runtime.pool),
      shape_(shape),
      weights_(weights),
      embedding_(embedding) {}

Head::Head(Runtime& runtime, const HeadShape& shape, Packed weights)
    : runtime_(runtime),
      kernels_(runtime.kernels),
      pool_(runtime.pool),
      shape_(shape),
      packed_(std::move(weights)),
      weights_(packed_.linear),
      embedding_(nullptr) {}

Head::~Head() {
    const Runtime::PassLock lock(runtime_);
    pool_.settle();
}

std::unique_ptr<Head> Head::part(std::span<const std::int64_t> ids) const {
    HeadShape shape = shape_;
    shape.vocab_size = static_cast<int>(ids.size());
    Packed rows = [&] {
        const Runtime::PassLock lock(runtime_);
        return gather_rows(weights(), ids);
    }();
    return std::make_unique<Head>(runtime_, shape, std::move(rows));
}

std::unique_ptr<Head> Head::first_rows(int num_rows) const {
    if (num_rows < 1 || num_rows > shape_.vocab_size)
        throw std::invalid_argument("the head has not so many rows");
    HeadShape shape = shape_;
    shape.vocab_size = num_rows;
    return std::make_unique<Head>(runtime_, shape, weights_, embedding_);
}

void Head::run(const float* rows, int num_rows, int num_units, const Wanted& wanted, const Piece& piece) {
    if (num_rows == 0 || num_units == 0) return;
    num_rows_ = num_rows;
    input_ = rows;
    num_units_ = num_units;
    piece_ = &piece;
    runtime_.lay_out([&](Scratch& scratch) { lay_out(scratch, wanted); });
    const std::size_t num_sums = static_cast<std::size_t>(num_rows) * block_stride_,
                      num_scored = static_cast<std::size_t>(pool_.size()) * num_rows * wanted.k;
    std::fill_n(block_largest_, num_sums, -kInfinity);
    std::fill_n(block_sum_, num_sums, 0.0f);
    std::fill_n(largest_, num_scored, kNoScore);
    for (int row = 0; num_rows_ <= kFewRows && row < num_rows_; ++row) read_row(row);
    const int pieces[] = {row_pieces(num_rows_), std::min(32 * pool_.size(), num_units)};
    pool_.run([](void* self, Worker& worker) { static_cast<Head*>(self)->run_phases(worker); }, this, pieces);
}

void Head::lay_out(Scratch& scratch, const Wanted& wanted) {
    block_stride_ = wanted.log_sums ? (num_blocks() + kTile - 1) / kTile * kTile : 0;
    scratch_stride_ = kHeadRows * kHeadTiles * kTile + kTile;  // `find` reads further
    const std::size_t rows = num_rows_, threads = pool_.size();
    rows_ = scratch.take_rows(num_rows_, shape_.width, weights().num_in);
    scratch_ = scratch.take<float>(threads * scratch_stride_);
    largest_ = scratch.take<Scored>(threads * rows * wanted.k);
    block_largest_ = scratch.take<float>(rows * block_stride_);
    block_sum_ = scratch.take<float>(rows * block_stride_);
}

std::size_t Head::scratch_nbytes(int num_rows) {
    num_rows_ = num_rows;
    Scratch scratch;
    lay_out(scratch, {1, true});
    return scratch.nbytes();
}

void Head::read_row(int row) {
    const std::size_t width = shape_.width;
    const float* source = input_ + row * width;
    std::memcpy(rows_.x + row * width, source, width * sizeof(float));
    if (!weights().is_float()) quantize(kernels_, weights(), source, rows_, row, 0, shape_.width);
}

void Head::run_phases(Worker& worker) {
    worker.each([&](int row) { read_row(row); });
    worker.each([&](int piece) {
        const int num_pieces = std::min(32 * pool_.size(), num_units_);
        (*piece_)(worker.thread, Part(num_units_, piece, num_pieces));
    });
}

// Calls take(row, first_id, count, logits) for all rows with the logits of a few tiles at a time.
template <class Take>
void Head::read_tiles(int thread, const Part& tiles, const Take& take) {
    constexpr std::size_t stride = kHeadTiles * kTile;
    float* aside = scratch_ + thread * scratch_stride_;
    for (int tile = tiles.first; tile < tiles.stop; tile += kHeadTiles) {
        const int num_tiles = std::min(kHeadTiles, tiles.stop - tile), first_id = tile * kTile,
                  count = std::min(num_tiles * kTile, shape_.vocab_size - first_id);
        for (int first = 0; first < num_rows_; first += kHeadRows) {
            const int rows = std::min(kHeadRows, num_rows_ - first);
            kernels_.linear(weights(), tile, num_tiles, rows_, first, rows, {aside, stride});
            for (int i = 0; i < rows; ++i) {
                float* logits = aside + i * stride;
                if (shape_.cap > 0.0f) kernels_.cap(logits, num_tiles * kTile, shape_.cap);
                if (shape_.divisor != 1.0f)
                    for (int j = 0; j < count; ++j) logits[j] /= shape_.divisor;
                take(static_cast<std::size_t>(first + i), first_id, count, logits);
            }
        }
    }
}

void Head::logits(const float* rows, int num_rows, float* out) {
    const Runtime::PassLock lock(runtime_);
    logits_locked(rows, num_rows, out, shape_.vocab_size);
}

void Head::logits_locked(const float* rows, int num_rows, float* out, std::size_t stride) {
    run(rows, num_rows, num_tiles(), {}, [&](int thread, const Part& tiles) {
        read_tiles(thread, tiles, [&](std::size_t row, int first_id, int count, const float* from) {
            std::memcpy(out + row * stride + first_id, from, count * sizeof(float));
        });
    });
}

// Pieces are whole blocks of tiles, so that the sums do not depend on how many threads there are.
void Head::topk(const float* rows, int num_rows, int k, std::int64_t* ids, float* values, float* log_sums,
                float* all) {
    const Runtime::PassLock lock(runtime_);
    const std::size_t num = static_cast<std::size_t>(num_rows) * k;
    const auto take = [&](int thread, std::size_t row, int first_id, int count, float* logits) {
        if (all) std::memcpy(all + row * shape_.vocab_size + first_id, logits, count * sizeof(float));
        Scored* list = largest_ + thread * num + row * k;
        if (log_sums) {
            const std::size_t block = row * block_stride_ + first_id / (kHeadTiles * kTile);
            const int whole = (count + kTile - 1) / kTile * kTile;
            std::fill(logits + count, logits + whole, -kInfinity);
            block_sum_[block] =
                kernels_.exp_sum(logits, nullptr, whole, block_largest_ + block);
        }
        const auto next = [&](int i) { return kernels_.find(logits, i, count, list[k - 1].value); };
        for (int i = next(0); i < count; i = next(i + 1))
            insert({logits[i], first_id + i}, list, k);
    };
    run(rows, num_rows, num_blocks(), {k, log_sums != nullptr}, [&](int thread, const Part& blocks) {
        const Part tiles(blocks.first * kHeadTiles, std::min(blocks.stop * kHeadTiles, num_tiles()));
        read_tiles(thread, tiles, [&](std::size_t row, int first_id, int count, float* logits) {
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
float Head::log_sum(int row) const {
    const std::size_t first = static_cast<std::size_t>(row) * block_stride_;
    float largest;
    const float total = kernels_.exp_sum(block_largest_ + first, block_sum_ + first, block_stride_,
                                         &largest);
    if (std::isnan(total) || std::isinf(largest)) return std::isnan(total) ? total : largest;
    return static_cast<float>(largest + std::log(static_cast<double>(total)));
}

// Whole tiles are computed for the columns in them: ascending ids are the fastest.
void Head::columns(const float* rows, int num_rows, std::span<const std::int64_t> ids, float* out) {
    for (std::int64_t id : ids)
        if (id < 0 || id >= shape_.vocab_size)
            throw std::invalid_argument("token id " + std::to_string(id) + " is outside the vocabulary");
    const Runtime::PassLock lock(runtime_);
    run(rows, num_rows, static_cast<int>(ids.size()), {}, [&](int thread, const Part& part) {
        for (int i = part.first, stop; i < part.stop; i = stop) {
            const int tile = static_cast<int>(ids[i] / kTile);
            for (stop = i + 1; stop < part.stop && ids[stop] / kTile == tile;) ++stop;
            read_tiles(thread, {tile, tile + 1}, [&](std::size_t row, int, int, const float* from) {
                for (int j = i; j < stop; ++j) out[row * ids.size() + j] = from[ids[j] % kTile];
            });
        }
    });
}

}  // namespace forerun
