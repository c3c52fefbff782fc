#include "drafters/block_network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace forerun {

BlockNetwork::BlockNetwork(Runtime& runtime, Decoder& target, const LayeredShape& layered, BlockShape shape)
    : LayeredNetwork(runtime, target, layered), shape_(std::move(shape)) {
    const std::size_t layers = layered.num_layers;
    if (shape_.windows.size() != layers || shape_.bidirectional.size() != layers)
        throw std::invalid_argument("every layer needs a window, 0 for none, and whether it sees later rows");
    if (num_guesses() < 1 || num_guesses() > kMaxSteps)
        throw std::invalid_argument("a block must guess 1 to " + std::to_string(kMaxSteps) + " tokens");
    if (shape_.mask_token < 0 || shape_.mask_token >= target.shape().vocab_size)
        throw std::invalid_argument("the mask is outside the vocabulary");
}

void BlockNetwork::check() {
    fc_ = &matrix("fc", width(), layered_.num_aux_layers * layered_.state_size);
    hidden_norm_ = norm("hidden_norm", width());
    check_layers();
    norm_ = norm("norm", width());
    check_heads(width(), 1);
    if (const int rank = shape_.markov_rank) {
        markov_in_ = &matrix("markov.in", target_.shape().vocab_size, rank);
        markov_out_ = &matrix("markov.out", num_ids(), rank);
    }
    if (has("confidence"))
        confidence_ = norm("confidence", width() + shape_.markov_rank + 1).weight;
}

void BlockNetwork::plan_prefill(std::vector<int>& phases, int rows) {
    phases = {rows, pieces(), row_pieces(rows)};
    phases.insert(phases.end(), layered_.num_layers, 2 * layered_.num_kv_heads);
}

void BlockNetwork::run_prefill(Worker& worker) {
    worker.each([&](int row) {
        const std::size_t first = static_cast<std::size_t>(row) * aux_.width;
        std::copy_n(prefill_states_ + first, aux_.width, aux_.x + first);
        if (!fc_->is_float()) kernels_.quantize(aux_.x + first, aux_, row, 0, aux_.width);
    });
    const auto fuse_part = [&](int piece) {
        const Part part(fc_->num_tiles(), piece, pieces());
        kernels_.linear(*fc_, part.first, part.stop - part.first, aux_, 0, num_prefill_,
                        {inputs_.x + part.first * kTile, static_cast<std::size_t>(width())});
    };
    worker.each_and_rows(fuse_part, num_prefill_, [&](int row) {
        float* g = inputs_.x + static_cast<std::size_t>(row) * width();
        kernels_.norm(g, hidden_norm_, width(), g);
        quantize_inputs(0, row);
    });
    for (int layer = 0; layer < layered_.num_layers; ++layer)
        worker.each([&, layer](int head) { project(layer, layered_.num_heads + head, num_prefill_); });
}

void BlockNetwork::begin(std::span<int> tokens) {
    begin_slots(tokens);
    const std::size_t count = slots_.size(), guesses = count * num_guesses();
    has_block_.assign(count, false);
    row_sequences_.assign(count, 0);
    confidences_.assign(count, 1.0);
    logits_.resize(guesses * logits_stride());
    states_.resize(guesses * width());
}

void BlockNetwork::begin_steps() {
    computed_.clear();
    num_read_ = 0;
    for (int i = 0; i < num_sequences(); ++i) {
        if (!is_active(i) || has_block_[i]) continue;
        computed_.push_back(i);
        has_block_[i] = true;
        num_read_ = std::max(num_read_, std::min(most_steps(i), num_guesses()));
    }
    if (computed_.empty()) return;
    // Masks behind the last place that is guessed are left out.
    const int size = block_rows_ = std::min(shape_.block_size, num_read_ + first_row());
    const int count = static_cast<int>(computed_.size()), rows = num_block_rows_ = count * size;
    runtime_.lay_out([&](Scratch& scratch) {
        lay_out_rows(scratch, rows);
        guesses_ = scratch.take_rows(count * padded_rows(num_read_), width());
    });
    resize_rows(rows);
    units_.clear();
    rows_tokens_.assign(rows, shape_.mask_token);
    const int together = kMaxPairs / (layered_.num_heads / layered_.num_kv_heads);
    for (int i = 0; i < count; ++i) {
        const int slot = slots_[computed_[i]], base = lengths_[slot];
        rows_tokens_[i * size] = draft(computed_[i]).request.token;
        for (int k = 0; k < size; ++k) {
            const int row = i * size + k;
            place(row, slot, base + k, base + k);
            for (int layer = 0; layer < layered_.num_layers; ++layer) {
                const int window = shape_.windows[layer];
                queries_[layer * rows + row] = {.row = row,
                                                .position = base + (shape_.bidirectional[layer] ? size - 1 : k),
                                                .first = window > 0 ? std::max(0, base - window) : 0};
            }
        }
        for (int k = 0; k < size; k += together)
            units_.push_back({i * size + k, std::min(together, size - k)});
    }
    num_placed_ = rows;
    std::vector<int> phases{rows};
    for (int layer = 0; layer < layered_.num_layers; ++layer)
        plan_layer(phases, rows, static_cast<int>(units_.size()));
    phases.push_back(static_cast<int>(logits_stride() / kHeadBlock));
    pool_.run([](void* self, Worker& worker) { static_cast<BlockNetwork*>(self)->run_block(worker); }, this, phases);
}

void BlockNetwork::run_block(Worker& worker) {
    worker.each([&](int row) { begin_row(row); });
    for (int layer = 0; layer < layered_.num_layers; ++layer)
        run_layer(worker, layer, num_block_rows_, [&, layer](int row) {
            layer + 1 < layered_.num_layers ? read_row(layer + 1, row) : end_row(row);
        });
    worker.each([&](int block) { read_head(block); });
}

void BlockNetwork::begin_row(int row) {
    target_.embed_row(rows_tokens_[row], x_of(row));
    read_row(0, row);
}

void BlockNetwork::read_row(int layer, int row) {
    kernels_.norm(x_of(row), layers_[layer].input_norm, width(),
                  inputs_.x + static_cast<std::size_t>(row) * width());
    quantize_inputs(layer, row);
}

void BlockNetwork::end_row(int row) {
    const int i = row / block_rows_, depth = row % block_rows_ - first_row();
    if (depth < 0) return;
    const int guess = i * padded_rows(num_read_) + depth;
    float* out = guesses_.x + static_cast<std::size_t>(guess) * width();
    kernels_.norm(x_of(row), norm_, width(), out);
    std::copy_n(out, width(), states_.data() + guess_of(computed_[i], depth) * width());
    if (!head(0).is_float()) quantize(kernels_, head(0), out, guesses_, guess, 0, width());
}

void BlockNetwork::read_head(int block) {
    const int first = block * kHeadTiles, count = std::min(kHeadTiles, head(0).num_tiles() - first);
    for (std::size_t i = 0; i < computed_.size(); ++i)
        kernels_.linear(head(0), first, count, guesses_, static_cast<int>(i) * padded_rows(num_read_),
                        num_read_,
                        {logits_.data() + guess_of(computed_[i], 0) * logits_stride() + first * kTile,
                         logits_stride()});
}

void BlockNetwork::lay_out(Scratch& scratch) {
    markov_rows_ = scratch.take_rows(num_sequences(), std::max(shape_.markov_rank, kGroup));
    head_rows_ = {};
}

void BlockNetwork::begin_rows() {
    for (int i = 0; i < num_sequences(); ++i)
        if (is_active(i)) row_sequences_[draft(i).row] = i;
}

void BlockNetwork::prepare(int sequence) {
    const GrowingTree& tree = draft(sequence);
    float* w = markov_rows_.x + static_cast<std::size_t>(tree.row) * markov_rows_.width;
    if (const int rank = shape_.markov_rank) {
        unpack_row(*markov_in_, tree.token, w);
        if (!markov_out_->is_float()) kernels_.quantize(w, markov_rows_, tree.row, 0, rank);
    }
    if (!confidence_) return;
    const float *x = states_.data() + guess_of(sequence, tree.depth) * width(), *weight = confidence_;
    double z = 0.0;
    for (int i = 0; i < width(); ++i) z += static_cast<double>(*weight++) * x[i];
    for (int i = 0; i < shape_.markov_rank; ++i) z += static_cast<double>(*weight++) * w[i];
    confidences_[sequence] = 1.0 / (1.0 + std::exp(-(z + *weight)));
}

void BlockNetwork::read_logits(int block, int num_tiles, int first_row, int num_rows, float* out) {
    for (int row = first_row; row < first_row + num_rows; ++row)
        std::copy_n(logits_.data() + guess_of(row_sequences_[row], row_depths_[row]) * logits_stride() +
                        static_cast<std::size_t>(block) * kHeadBlock,
                    num_tiles * kTile, out + static_cast<std::size_t>(row - first_row) * kHeadBlock);
    if (markov_out_)
        kernels_.linear(*markov_out_, block * kHeadTiles, num_tiles, markov_rows_, first_row, num_rows,
                        {out, kHeadBlock, true, 1.0f});
}

}  // namespace forerun
