#include "drafters/block_network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace forerun {

BlockNetwork::BlockNetwork(Runtime& runtime, Decoder& target, const LayeredShape& layered, const BlockShape& shape)
    : LayeredNetwork(runtime, target, layered), shape_(shape) {
    const std::size_t layers = layered.num_layers;
    if (layered.windows.size() != layers || layered.bidirectional.size() != layers)
        throw std::invalid_argument("every layer needs a window, 0 for none, and whether it sees later rows");
    if (width() != target.shape().hidden_size)
        throw std::invalid_argument("a block drafter must be as wide as its target");
    if (num_guesses() < 1 || num_guesses() > kMaxSteps)
        throw std::invalid_argument("a block must guess 1 to " + std::to_string(kMaxSteps) + " tokens");
    if (shape_.mask_token < 0 || shape_.mask_token >= target.shape().vocab_size)
        throw std::invalid_argument("the mask is outside the vocabulary");
}

void BlockNetwork::check() {
    LayeredNetwork::check();
    head_ = std::make_unique<Head>(runtime_, HeadShape{num_ids(), width()}, head(0));
    if (const int rank = shape_.markov_rank) {
        markov_in_ = &matrix("markov.in", target_.shape().vocab_size, rank);
        markov_out_ = &matrix("markov.out", num_ids(), rank);
    }
    if (has("confidence"))
        confidence_ = norm("confidence", width() + shape_.markov_rank + 1).weight;
}

void BlockNetwork::begin(std::span<int> tokens) {
    LayeredNetwork::begin(tokens);
    const std::size_t count = slots_.size(), guesses = count * num_guesses();
    num_filled_ = 0;
    blocks_.assign(count, kNoBlock);
    row_sequences_.assign(count, 0);
    confidences_.assign(count, 1.0);
    logits_.resize(guesses * logits_stride());
    states_.resize(guesses * width());
}

void BlockNetwork::begin_steps() {
    std::vector<int> sequences;
    for (int i = 0; i < num_sequences(); ++i)
        if (is_active(i) && blocks_[i] == kNoBlock) sequences.push_back(i);
    if (!sequences.empty()) fill(sequences);
}

// Masks behind the last place that is guessed are left out.
void BlockNetwork::fill(std::span<const int> sequences) {
    std::size_t num_read = 0;
    for (int i : sequences) num_read = std::max<std::size_t>(num_read, std::min(most_steps(i), num_guesses()));
    const int size = std::min(shape_.block_size, static_cast<int>(num_read) + first_row());
    const std::size_t wide = width(), rows = sequences.size() * size, first = num_filled_;
    rows_.resize(rows * wide);
    hidden_.resize(rows * wide);
    std::vector<Segment> segments;
    float* row = rows_.data();
    for (int i : sequences) {
        segments.push_back({slots_[i], lengths_[slots_[i]], 0, size, std::vector<int>(size), {}});
        for (int k = 0; k < size; ++k, row += wide)
            target_.embed_row(k == 0 ? draft(i).request.token : shape_.mask_token, row);
    }
    pass(segments, {rows_.data()}, hidden_.data());
    const float* from = hidden_.data() + first_row() * wide;
    for (int i : sequences) {
        std::copy_n(from, num_read * wide, &states_[num_filled_ * wide]);
        blocks_[i] = num_filled_;
        num_filled_ += num_read;
        from += size * wide;
    }
    head_->logits_locked(&states_[first * wide], static_cast<int>(num_filled_ - first),
                         &logits_[first * logits_stride()], logits_stride());
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
