// The recurrent networks: IBM's MLP speculator and its LSTM cell.

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "drafters/draft_network.h"

namespace forerun {
namespace {

float state_weight(int num_predict) { return std::pow(0.5f, 0.5f / static_cast<float>(num_predict)); }

}  // namespace

float token_weight(int inner_size, int num_predict) {
    const float weight = state_weight(num_predict);
    return std::sqrt((1 - weight * weight) * static_cast<float>(inner_size) / 2) / weight;
}

RecurrentNetwork::RecurrentNetwork(Runtime& runtime, Decoder& target, const RecurrentShape& shape)
    : DraftNetwork(runtime, target),
      shape_(shape),
      emb_weight_(token_weight(shape.inner_size, shape.num_predict)) {
    if (shape.inner_size % kTile) throw std::invalid_argument("inner size must be a multiple of 16");
}

// Weights of depth i: "proj.i", "emb.i" (or "map" on the target's embedding, or neither where widths
// are equal), "ln.i" and "head.i"; those that are missing are the depth's before.
void RecurrentNetwork::check() {
    const int width = target_.shape().hidden_size, inner = shape_.inner_size;
    const Packed *map = find("map"), *table = find("emb.0");
    emb_size_ = table ? table->linear.num_in : map ? map->linear.num_out : width;
    if (emb_size_ != inner && emb_size_ != num_gates() * inner)
        throw std::invalid_argument(std::string(table ? "emb.0" : map ? "map" : "the target's row") +
                                    " is " + std::to_string(emb_size_) + " wide, expected " +
                                    std::to_string(inner));
    map_ = !table && map ? &matrix("map", emb_size_, width) : nullptr;
    cells_.clear();
    int num_heads = 0;
    for (int i = 0; i < shape_.max_depth; ++i) {
        const std::string depth = std::to_string(i);
        Cell cell = i > 0 ? cells_.back() : Cell{};
        if (i == 0 || has("proj." + depth))
            cell.projection = &matrix("proj." + depth, num_gates() * inner, i > 0 ? inner : width);
        if (has("emb." + depth))
            cell.embedding = &matrix("emb." + depth, target_.shape().vocab_size, emb_size_);
        if (i == 0 || has("ln." + depth)) cell.norm = norm("ln." + depth, inner);
        if (has("head." + depth)) num_heads = i + 1;
        cells_.push_back(cell);
    }
    if (shape_.max_depth > 1) matrix("proj.1", num_gates() * inner, inner);
    if (shape_.is_lstm) state_norm_ = norm("state_ln", inner);
    input_scale_.assign(width, std::sqrt(0.5f));
    input_norm_ = {input_scale_.data(), nullptr, 1e-6f, false};
    check_heads(inner, std::max(num_heads, 1));
}

void RecurrentNetwork::keep_mapped() {
    const Runtime::PassLock lock(runtime_);
    if (!map_) return;
    mapped_ids_ = ids();
    mapped_ = Buffer(mapped_ids_.size() * emb_size_);
    mapped_scales_.assign(mapped_ids_.size(), kNotMapped);
}

std::size_t RecurrentNetwork::nbytes() const {
    return DraftNetwork::nbytes() + mapped_.nbytes() + mapped_scales_.size() * sizeof(float);
}

// Where the mapped embedding of a token is kept, -1: nowhere.
std::ptrdiff_t RecurrentNetwork::mapped_row(int token) const {
    const auto found = std::lower_bound(mapped_ids_.begin(), mapped_ids_.end(), token);
    const bool is_kept = found != mapped_ids_.end() && *found == token;
    return is_kept ? found - mapped_ids_.begin() : -1;
}

// Gives the mapped embedding of a token, if it was needed before.
bool RecurrentNetwork::recall(int token, float* out) const {
    const std::ptrdiff_t row = mapped_row(token);
    if (row < 0 || mapped_scales_[row] < 0) return false;
    const std::int8_t* values = mapped_.as<std::int8_t>() + row * emb_size_;
    for (int i = 0; i < emb_size_; ++i) out[i] = mapped_scales_[row] * values[i];
    return true;
}

// Rounds a mapped embedding as it is kept, so that it is the same now and later, and keeps it.
void RecurrentNetwork::remember(int sequence, float* e) {
    const int token = draft(sequence).token;
    const std::ptrdiff_t row = mapped_row(token);
    if (row < 0) return;
    bool is_first = true;  // of the step's sequences with this token: one of them writes
    for (int i = 0; i < sequence; ++i)
        is_first &= !(is_active(i) && draft(i).token == token);
    std::int8_t* values = mapped_.as<std::int8_t>() + row * emb_size_;
    float largest = 0.0f;
    for (int i = 0; i < emb_size_; ++i) largest = std::max(largest, std::abs(e[i]));
    const float scale = largest / 127.0f;
    for (int i = 0; i < emb_size_; ++i) {
        const auto code = static_cast<std::int8_t>(scale > 0 ? std::lrint(e[i] / scale) : 0);
        e[i] = scale * code;
        if (is_first) values[i] = code;
    }
    if (is_first) mapped_scales_[row] = scale;
}

void RecurrentNetwork::begin(std::span<int>) {
    check_states();
    if (cells_.empty()) check();
    is_mapped_.assign(num_sequences(), 0);
    states_.resize(static_cast<std::size_t>(num_sequences()) * kMaxSteps * 2 * shape_.inner_size);
}

void RecurrentNetwork::lay_out(Scratch& scratch) {
    const int rows = num_sequences(), inner = shape_.inner_size,
              width = target_.shape().hidden_size;
    first_rows_ = scratch.take_rows(rows, width);
    rows_ = scratch.take_rows(rows, inner);
    map_rows_ = scratch.take_rows(rows, width);
    head_rows_ = scratch.take_rows(rows, inner);
    gates_ = scratch.take<float>(static_cast<std::size_t>(rows) * num_gates() * inner);
    embedded_ = scratch.take<float>(static_cast<std::size_t>(rows) * emb_size_);
}

void RecurrentNetwork::plan_cell(std::vector<int>& phases) {
    phases = {8 * pool_.size(), row_pieces(num_sequences())};
}

void RecurrentNetwork::run_cell(Worker& worker) {
    worker.each_and_rows([&](int piece) { project(piece, is_first() ? first_rows_ : rows_); }, num_sequences_,
                         [&](int sequence) { finish(sequence); });
}

// State and cell of a sequence after one of its steps.
float* RecurrentNetwork::state(int sequence, int step) {
    return states_.data() +
           (static_cast<std::size_t>(sequence) * kMaxSteps + step) * 2 * shape_.inner_size;
}

void RecurrentNetwork::embed(const Cell& cell, int token, float* out) {
    if (cell.embedding)
        unpack_row(*cell.embedding, token, out);
    else
        target_.embed_row(token, out);
}

// A row's state and embedding. In the first step all rows start from the target's state.
void RecurrentNetwork::prepare(int sequence) {
    const GrowingTree& tree = draft(sequence);
    const int row = tree.row, width = target_.shape().hidden_size;
    const Cell& here = cell(tree.depth);
    const Rows& to = is_first() ? first_rows_ : rows_;
    const float* from = is_first() ? seeds_[sequence].state
                                  : state(sequence, step_above(sequence));
    float* x = to.x + static_cast<std::size_t>(row) * to.width;
    if (is_first() && shape_.scales_input)
        kernels_.norm(from, input_norm_, width, x);
    else
        std::copy_n(from, to.width, x);
    if (!here.projection->is_float()) kernels_.quantize(x, to, row, 0, to.width);
    float* const embedded = embedded_ + static_cast<std::size_t>(row) * emb_size_;
    if (!map_) {
        embed(here, tree.token, embedded);
        return;
    }
    is_mapped_[row] = recall(tree.token, embedded);
    if (is_mapped_[row]) return;
    float* e = map_rows_.x + static_cast<std::size_t>(row) * width;
    embed(here, tree.token, e);
    if (!map_->is_float()) kernels_.quantize(e, map_rows_, row, 0, width);
}

// A piece of the gates, and of the embedding's map.
void RecurrentNetwork::project(int piece, const Rows& rows) {
    const int count = num_rows(), pieces = 8 * pool_.size();
    const std::size_t stride = static_cast<std::size_t>(num_gates()) * shape_.inner_size;
    for (int row = 0, stop; row < count; row = stop) {
        const auto weights_of = [&](int depth) { return cell(depth).projection; };
        stop = end_of_rows(row, count, weights_of);
        const Linear& weights = *weights_of(row_depths_[row]);
        const Part part(weights.num_tiles(), piece, pieces);
        kernels_.linear(weights, part.first, part.stop - part.first, rows, row, stop - row,
                        {gates_ + row * stride + part.first * kTile, stride});
    }
    if (!map_) return;
    const Part part(map_->num_tiles(), piece, pieces);
    for (int row = 0; row < count; ++row)
        if (!is_mapped_[row])
            kernels_.linear(*map_, part.first, part.stop - part.first, map_rows_, row, 1,
                            {embedded_ + row * static_cast<std::size_t>(emb_size_) + part.first * kTile,
                             static_cast<std::size_t>(emb_size_)});
}

// The new state of a row.
void RecurrentNetwork::finish(int sequence) {
    const GrowingTree& tree = draft(sequence);
    if (!is_active(sequence)) return;
    const int row = tree.row, inner = shape_.inner_size;
    const Norm& norm = cell(tree.depth).norm;
    float* e = embedded_ + static_cast<std::size_t>(row) * emb_size_;
    if (map_ && !is_mapped_[row]) remember(sequence, e);
    float* gates = gates_ + static_cast<std::size_t>(row) * num_gates() * inner;
    for (int first = 0; first < num_gates() * inner; first += emb_size_)
        for (int i = 0; i < emb_size_; ++i) gates[first + i] += emb_weight_ * e[i];
    float *s = state(sequence, step_of(sequence)), *c = s + inner;
    if (shape_.is_lstm) {
        float *forget = gates, *input = gates + inner, *output = gates + 2 * inner,
              *candidate = gates + 3 * inner;
        kernels_.norm(candidate, norm, inner, candidate);
        kernels_.activate(Activation::Gelu, candidate, nullptr, inner, candidate);
        kernels_.gate(input, candidate, inner, c);
        if (step_above(sequence) >= 0) {
            kernels_.gate(forget, state(sequence, step_above(sequence)) + inner, inner, candidate);
            for (int i = 0; i < inner; ++i) c[i] += candidate[i];
        }
        kernels_.norm(c, state_norm_, inner, s);
        kernels_.activate(Activation::Gelu, s, nullptr, inner, s);
        kernels_.gate(output, s, inner, s);
    } else {
        kernels_.norm(gates, norm, inner, s);
        kernels_.activate(Activation::Gelu, s, nullptr, inner, s);
    }
    give_head(row, s);
}

}  // namespace forerun
