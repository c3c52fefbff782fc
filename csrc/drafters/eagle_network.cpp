#include "drafters/eagle_network.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace forerun {

EagleNetwork::EagleNetwork(Runtime& runtime, Decoder& target, const EagleShape& shape)
    : DraftNetwork(runtime, target),
      shape_(shape),
      cache_({{shape.num_kv_heads, shape.head_dim}}, shape.num_slots, shape.max_len + kMaxSteps,
             KvForms{}),
      lengths_(shape.num_slots),
      tokens_(shape.num_slots),
      roots_(static_cast<std::size_t>(shape.num_slots) * target.shape().hidden_size) {
    if (shape.state_size % kTile || shape.head_dim % kTile || shape.intermediate_size % kTile)
        throw std::invalid_argument("state size, head size and MLP size must be multiples of 16");
    if (shape.num_heads % shape.num_kv_heads || shape.num_heads / shape.num_kv_heads > kMaxPairs)
        throw std::invalid_argument("heads must be a multiple of kv heads, at most 24 for each");
}

void EagleNetwork::check() {
    const int inner = shape_.intermediate_size, q = shape_.num_heads * shape_.head_dim,
              kv = shape_.num_kv_heads * shape_.head_dim;
    fc_ = &matrix("fc", width(), kTaps * shape_.state_size);
    for (int i = 0; i < kTaps; ++i) {
        const std::string name = "fc_norm." + std::to_string(i);
        fc_norms_[i] = has("fc_norm.0") ? norm(name, shape_.state_size) : Norm{};
    }
    fc_norm_ = has("fc_norm") ? norm("fc_norm", kTaps * shape_.state_size) : Norm{};
    input_norm_ = norm("input_norm", width());
    hidden_norm_ = norm("hidden_norm", width());
    q_ = &matrix("q", q, 2 * width());
    k_ = &matrix("k", kv, 2 * width());
    v_ = &matrix("v", kv, 2 * width());
    q_norm_ = has("q_norm") ? norm("q_norm", shape_.head_dim) : Norm{};
    k_norm_ = has("k_norm") ? norm("k_norm", shape_.head_dim) : Norm{};
    o_ = &matrix("o", width(), q);
    mlp_norm_ = norm("mlp_norm", width());
    gate_ = &matrix("gate", inner, width());
    up_ = &matrix("up", inner, width());
    down_ = &matrix("down", width(), inner);
    norm_ = norm("norm", width());
    embedding_ = has("emb.0") ? &matrix("emb.0", target_.shape().vocab_size, width()) : nullptr;
    if (2 * static_cast<int>(frequencies_.size()) != shape_.head_dim)
        throw std::invalid_argument("the frequencies of positions must be half of a head");
    check_heads(width(), 1);
}

void EagleNetwork::clear(int slot) {
    cache_.check_slot(slot);
    lengths_[slot] = 0;
}

void EagleNetwork::reuse(int slot, int source, int rows) {
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

void EagleNetwork::feed(int slot, std::span<const int> tokens, const float* states) {
    const Runtime::PassLock lock(runtime_);
    if (!fc_) check();
    cache_.check_slot(slot);
    if (static_cast<int>(tokens.size()) > shape_.max_len - lengths_[slot])
        throw std::out_of_range("the sequence does not fit the cache");
    for (int token : tokens)
        if (token < 0 || token >= target_.shape().vocab_size)
            throw std::invalid_argument("token id " + std::to_string(token) +
                                        " is outside the vocabulary");
    for (std::size_t first = 0; first < tokens.size(); first += kFeedRows) {
        const std::size_t count = std::min<std::size_t>(kFeedRows, tokens.size() - first);
        feed_rows(slot, tokens.subspan(first, count), states + first * kTaps * shape_.state_size);
    }
}

void EagleNetwork::feed_rows(int slot, std::span<const int> tokens, const float* states) {
    const int rows = static_cast<int>(tokens.size()), kv = shape_.num_kv_heads;
    fed_slot_ = slot;
    fed_tokens_ = tokens;
    fed_states_ = states;
    num_fed_ = rows;
    runtime_.lay_out([&](Scratch& scratch) {
        taps_ = scratch.take_rows(rows, kTaps * shape_.state_size);
        inputs_ = scratch.take_rows(rows, 2 * width());
        g_ = scratch.take<float>(static_cast<std::size_t>(rows) * width());
        qkv_ = scratch.take<float>(static_cast<std::size_t>(rows) * shape_.head_dim *
                                   (shape_.num_heads + 2 * kv));
    });
    row_slots_.assign(rows, slot);
    cache_rows_.resize(rows);
    cos_.resize(rows * frequencies_.size());
    sin_.resize(cos_.size());
    for (int row = 0; row < rows; ++row)
        place(row, slot, lengths_[slot] + row, lengths_[slot] + row);
    const int phases[] = {rows, pieces(), row_pieces(rows), 2 * kv};
    pool_.run([](void* self, Worker& worker) { static_cast<EagleNetwork*>(self)->run_feed(worker); },
              this, phases);
    lengths_[slot] += rows;
    tokens_[slot] = tokens.back();
    std::copy_n(g_ + static_cast<std::size_t>(rows - 1) * width(), width(),
                roots_.data() + static_cast<std::size_t>(slot) * width());
}

void EagleNetwork::run_feed(Worker& worker) {
    worker.each([&](int row) { fuse(row); });
    const auto fuse_part = [&](int piece) {
        const Part part(fc_->num_tiles(), piece, pieces());
        kernels_.linear(*fc_, part.first, part.stop - part.first, taps_, 0, num_fed_,
                        {g_ + part.first * kTile, static_cast<std::size_t>(width())});
    };
    worker.each_and_rows(fuse_part, num_fed_, [&](int row) {
        read_row(row, fed_tokens_[row], g_ + static_cast<std::size_t>(row) * width(), nullptr);
    });
    worker.each([&](int head) { project_head(shape_.num_heads + head, num_fed_); });
}

// What `fc` reads.
void EagleNetwork::fuse(int row) {
    const int size = shape_.state_size, all = kTaps * size;
    const float* from = fed_states_ + static_cast<std::size_t>(row) * all;
    float* x = taps_.x + static_cast<std::size_t>(row) * all;
    for (int i = 0; i < kTaps; ++i)
        if (fc_norms_[i].weight)
            kernels_.norm(from + i * size, fc_norms_[i], size, x + i * size);
        else
            std::copy_n(from + i * size, size, x + i * size);
    if (fc_norm_.weight) kernels_.norm(x, fc_norm_, all, x);
    if (!fc_->is_float()) kernels_.quantize(x, taps_, row, 0, all);
}

// What q, k and v read, and where the residual starts.
void EagleNetwork::read_row(int row, int token, const float* g, float* residual) {
    float* x = inputs_.x + static_cast<std::size_t>(row) * inputs_.width;
    if (embedding_)
        unpack_row(*embedding_, token, x);
    else
        target_.embed_row(token, x);
    kernels_.norm(x, input_norm_, width(), x);
    kernels_.norm(g, hidden_norm_, width(), x + width());
    if (!q_->is_float()) kernels_.quantize(x, inputs_, row, 0, inputs_.width);
    if (residual) std::copy_n(shape_.starts_from_norm ? x + width() : g, width(), residual);
}

void EagleNetwork::place(int row, int slot, int cache_row, int position) {
    row_slots_[row] = slot;
    cache_rows_[row] = cache_row;
    const std::size_t half = frequencies_.size();
    for (std::size_t i = 0; i < half; ++i) {
        const float angle = static_cast<float>(position) * frequencies_[i];
        cos_[row * half + i] = std::cos(angle);
        sin_[row * half + i] = std::sin(angle);
    }
}

// One head of q, k or v of some rows.
void EagleNetwork::project_head(int head, int num_rows) {
    const int heads = shape_.num_heads, kv = shape_.num_kv_heads, dim = shape_.head_dim,
              tiles = dim / kTile;
    if (num_rows == 0) return;
    const std::size_t stride = static_cast<std::size_t>(heads + 2 * kv) * dim;
    const bool is_query = head < heads, is_value = head >= heads + kv;
    const Linear& linear = is_query ? *q_ : is_value ? *v_ : *k_;
    const int local = is_query ? head : (head - heads) % kv;
    const Rope rope{cos_.data(), sin_.data(), static_cast<int>(frequencies_.size())};
    float* x = qkv_ + static_cast<std::size_t>(head) * dim;
    kernels_.linear(linear, local * tiles, tiles, inputs_, 0, num_rows, {x, stride});
    for (int row = 0; row < num_rows; ++row, x += stride) {
        if (!is_value) {
            const Norm& norm = is_query ? q_norm_ : k_norm_;
            if (norm.weight) kernels_.norm(x, norm, dim, x);
            kernels_.rotate(rope, row, x);
        }
        if (is_query) {
            kernels_.scale(x, dim, 1.0f / std::sqrt(static_cast<float>(dim)));
            continue;
        }
        const auto write = is_value ? kernels_.write_value : kernels_.write_key;
        write(cache_.head(0, row_slots_[row], local), cache_rows_[row], x);
    }
}

void EagleNetwork::begin(std::span<int> tokens) {
    if (!fc_) check();
    slots_.clear();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int slot = seeds_[i].slot;
        cache_.check_slot(slot);
        if (lengths_[slot] == 0 || std::count(slots_.begin(), slots_.end(), slot) > 0)
            throw std::invalid_argument("a slot is empty or named twice");
        slots_.push_back(slot);
        tokens[i] = tokens_[slot];
    }
    const std::size_t rows = slots_.size();
    steps_.assign(rows, {});
    row_slots_.assign(rows, 0);
    cache_rows_.assign(rows, 0);
    cos_.assign(rows * frequencies_.size(), 0.0f);
    sin_ = cos_;
    queries_.assign(rows, {});
    paths_.assign(rows * kMaxSteps, 0);
    states_.resize(rows * kMaxSteps * width());
}

void EagleNetwork::lay_out(Scratch& scratch) {
    const int rows = num_sequences(), dim = shape_.head_dim, kv = shape_.num_kv_heads;
    const std::size_t count = rows;
    inputs_ = scratch.take_rows(rows, 2 * width());
    attended_ = scratch.take_rows(rows, shape_.num_heads * dim);
    normed_ = scratch.take_rows(rows, width());
    activated_ = scratch.take_rows(rows, shape_.intermediate_size);
    head_rows_ = scratch.take_rows(rows, width());
    x_ = scratch.take<float>(count * width());
    gates_ = scratch.take<float>(count * 2 * shape_.intermediate_size);
    qkv_ = scratch.take<float>(count * dim * (shape_.num_heads + 2 * kv));
    scratch_stride_ = kMaxPairs * (3 * kChunk + kMaxSteps + static_cast<std::size_t>(dim));
    scratch_ = scratch.take<float>(pool_.size() * scratch_stride_);
}

void EagleNetwork::plan_cell(std::vector<int>& phases) {
    const int rows = row_pieces(num_sequences()), kv = shape_.num_kv_heads;
    phases = {shape_.num_heads + 2 * kv, num_sequences() * kv, rows, pieces(), rows, pieces(), pieces(), rows};
}

void EagleNetwork::run_cell(Worker& worker) {
    const int kv = shape_.num_kv_heads;
    const auto attend_one = [&](int i) { attend(i / kv, i % kv, worker.thread); };
    worker.each([&](int head) { project_head(head, num_rows()); });
    worker.each_and_rows(attend_one, num_sequences_, [&](int row) {
        if (row < num_rows() && !o_->is_float())
            kernels_.quantize(attended_.x + static_cast<std::size_t>(row) * attended_.width,
                              attended_, row, 0, attended_.width);
    });
    worker.each_and_rows([&](int piece) { add_linear(*o_, attended_, piece); }, num_sequences_,
                         [&](int row) { norm_row(row); });
    worker.each([&](int piece) { mlp_up(piece); });
    worker.each_and_rows([&](int piece) { add_linear(*down_, activated_, piece); }, num_sequences_,
                         [&](int sequence) { finish(sequence); });
}

// A row: the one that was fed last at first, then guessed ones. Guesses lie behind the fed rows, by
// step; a row sees those on its path.
void EagleNetwork::prepare(int sequence) {
    const GrowingTree& tree = draft(sequence);
    const int row = tree.row, slot = slots_[sequence], base = lengths_[slot], step = step_of(sequence);
    const float* g = step == 0 ? roots_.data() + static_cast<std::size_t>(slot) * width()
                               : state(sequence, step_above(sequence));
    read_row(row, tree.token, g, x_ + static_cast<std::size_t>(row) * width());
    const int position = base - 1 + tree.depth;
    place(row, slot, base - 1 + step, position);
    std::int32_t* path = paths_.data() + static_cast<std::size_t>(row) * kMaxSteps;
    steps_[sequence][step] = step_above(sequence);
    for (int at = step, depth = tree.depth; depth > 0; at = steps_[sequence][at], --depth)
        path[depth - 1] = base - 1 + at;
    queries_[row] = {row, position, 0, base, path};
}

// The heads of one kv head of one row, over all that it sees, in ascending order.
void EagleNetwork::attend(int sequence, int kv_head, int thread) {
    const GrowingTree& tree = draft(sequence);
    if (!is_active(sequence)) return;
    const int row = tree.row, group = shape_.num_heads / shape_.num_kv_heads;
    const std::size_t dim = shape_.head_dim;
    const Query& query = queries_[row];
    Attended states[kMaxPairs];
    float* scratch = scratch_ + thread * scratch_stride_;
    for (Attended& state : states) state.out = std::exchange(scratch, scratch + dim);
    const Attention a{.head = cache_.head(0, slots_[sequence], kv_head),
                      .queries = &query,
                      .num_queries = 1,
                      .group = group,
                      .q = qkv_ + static_cast<std::size_t>(kv_head) * group * dim,
                      .q_stride = (shape_.num_heads + 2 * shape_.num_kv_heads) * dim,
                      .last_chunk = query.position / kChunk,
                      .row_stop = lengths_[slots_[sequence]] + kMaxSteps,
                      .scratch = scratch};
    kernels_.attend(a, 0, query.position / kChunk + 1, states);
    for (int h = 0; h < group; ++h)
        kernels_.finish(states[h], shape_.head_dim,
                        attended_.x + static_cast<std::size_t>(row) * attended_.width +
                            (kv_head * group + h) * dim);
}

void EagleNetwork::norm_row(int row) {
    if (row >= num_rows()) return;
    float* out = normed_.x + static_cast<std::size_t>(row) * width();
    kernels_.norm(x_ + static_cast<std::size_t>(row) * width(), mlp_norm_, width(), out);
    if (!up_->is_float()) kernels_.quantize(out, normed_, row, 0, width());
}

// gate and up of some groups of channels.
void EagleNetwork::mlp_up(int piece) {
    const int inner = shape_.intermediate_size, tiles = inner % kGroup == 0 ? 2 : 1,
              rows = num_rows();
    const Part part(inner / (tiles * kTile), piece, pieces());
    const int first = part.first * tiles, count = (part.stop - part.first) * tiles;
    if (rows == 0 || count == 0) return;
    const std::size_t stride = 2 * static_cast<std::size_t>(inner);
    float *gate = gates_ + first * kTile, *up = gate + inner;
    kernels_.linear(*gate_, first, count, normed_, 0, rows, {gate, stride});
    kernels_.linear(*up_, first, count, normed_, 0, rows, {up, stride});
    for (int row = 0; row < rows; ++row, gate += stride, up += stride) {
        float* out = activated_.x + static_cast<std::size_t>(row) * inner + first * kTile;
        kernels_.activate(Activation::Silu, gate, up, count * kTile, out);
        if (!down_->is_float())
            kernels_.quantize(out, activated_, row, first * kTile, count * kTile);
    }
}

void EagleNetwork::add_linear(const Linear& linear, const Rows& rows, int piece) {
    const Part part(linear.num_tiles(), piece, pieces());
    const int count = num_rows();
    if (count == 0) return;
    kernels_.linear(linear, part.first, part.stop - part.first, rows, 0, count,
                    {x_ + part.first * kTile, static_cast<std::size_t>(width()), true, 1.0f});
}

void EagleNetwork::finish(int sequence) {
    const GrowingTree& tree = draft(sequence);
    if (!is_active(sequence)) return;
    const float* a = x_ + static_cast<std::size_t>(tree.row) * width();
    float* out = normed_.x + static_cast<std::size_t>(tree.row) * width();
    kernels_.norm(a, norm_, width(), out);
    give_head(tree.row, out);
    std::copy_n(shape_.feeds_back_norm ? out : a, width(), state(sequence, step_of(sequence)));
}

}  // namespace forerun
