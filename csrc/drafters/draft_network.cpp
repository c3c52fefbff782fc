// What all networks that draft share: their weights, the head and the growing tree.

#include "drafters/draft_network.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace forerun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

DraftNetwork::DraftNetwork(Runtime& runtime, Decoder& target)
    : runtime_(runtime), target_(target), kernels_(runtime.kernels), pool_(runtime.pool) {}

void DraftNetwork::settle() {
    const Runtime::PassLock lock(runtime_);
    pool_.settle();
}

void DraftNetwork::set(const std::string& name, Packed packed) {
    const Runtime::PassLock lock(runtime_);
    weights_[name] = std::move(packed);
}

void DraftNetwork::set_norm(const std::string& name, std::span<const float> weight,
                            std::span<const float> bias, float eps) {
    const auto copy = [](std::span<const float> from) {
        Buffer buffer = weight_memory(from.size_bytes());
        std::copy(from.begin(), from.end(), buffer.as<float>());
        return buffer;
    };
    set(name, {{}, copy(weight), copy(bias)});
    eps_[name] = eps;
}

void DraftNetwork::set_tokens(const std::vector<std::int64_t>& ids) {
    ids_ = ids;
    noise_ids_.assign(ids.begin(), ids.end());
    noise_ids_.resize(ids.size() + kTile);
}

void DraftNetwork::take_head() {
    const Linear& rows = target_.head().weights();
    if (!ids_.empty()) {
        set("head.0", gather_rows(rows, ids_));
        return;
    }
    std::vector<std::int64_t> all(rows.num_out);
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
    set("head.0", gather_rows(rows, all));
}

void DraftNetwork::set_temperatures(std::vector<float> temperatures) {
    if (temperatures.empty()) throw std::invalid_argument("no temperature is given");
    for (float& value : temperatures) {
        if (!(value > 0 && value < kInfinity))
            throw std::invalid_argument("temperatures must be above 0");
        value = 1.0f / value;
    }
    factors_ = std::move(temperatures);
}

const Packed* DraftNetwork::find(const std::string& name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() ? nullptr : &found->second;
}

const Linear& DraftNetwork::matrix(const std::string& name, int num_out, int num_in) const {
    const Packed* found = find(name);
    if (!found || !found->linear.tiles)
        throw std::invalid_argument("weight " + name + " is missing");
    const Linear& linear = found->linear;
    if (linear.num_out != num_out || linear.num_in != num_in)
        throw std::invalid_argument(
            name + " is (" + std::to_string(linear.num_out) + ", " +
            std::to_string(linear.num_in) + "), expected (" + std::to_string(num_out) + ", " +
            std::to_string(num_in) + ")");
    return linear;
}

Norm DraftNetwork::norm(const std::string& name, int width) const {
    const Packed* found = find(name);
    if (!found) throw std::invalid_argument("weight " + name + " is missing");
    const Packed& packed = *found;
    const std::size_t nbytes = width * sizeof(float);
    if (packed.memory.nbytes() != nbytes || (packed.bias.nbytes() && packed.bias.nbytes() != nbytes))
        throw std::invalid_argument(name + " must have " + std::to_string(width) + " values");
    return {packed.memory.as<float>(), packed.bias.as<float>(), eps_.at(name), false};
}

void DraftNetwork::check_tokens() {
    const int vocab_size = target_.shape().vocab_size;
    num_ids_ = ids_.empty() ? vocab_size : static_cast<int>(ids_.size());
    for (std::size_t i = 0; i < ids_.size(); ++i)
        if (ids_[i] < 0 || ids_[i] >= vocab_size || (i > 0 && ids_[i] <= ids_[i - 1]))
            throw std::invalid_argument("draft tokens must be ascending ids of the vocabulary");
}

// Heads by depth, the last for all below: "head.0", "head.1", ...
void DraftNetwork::check_heads(int width, int num_heads) {
    check_tokens();
    heads_.clear();
    for (int i = 0; i < num_heads; ++i)
        heads_.push_back(&matrix("head." + std::to_string(i), num_ids_, width));
}

const Linear& DraftNetwork::head(int depth) const {
    return *heads_[std::min<std::size_t>(depth, heads_.size() - 1)];
}

std::size_t DraftNetwork::nbytes() const {
    std::size_t total = ids_.size() * sizeof(ids_[0]);
    for (const auto& [name, packed] : weights_) total += packed.nbytes();
    return total;
}

int DraftNetwork::num_rows() const {
    return static_cast<int>(std::count_if(trees_->begin(), trees_->end(), [this](const GrowingTree& each) {
        return each.waits_for == self_;
    }));
}

// Gives the sequences that take part in a step their rows, in order. Few of them are prepared at once.
void DraftNetwork::begin_step() {
    int row = 0;
    for (GrowingTree& each : *trees_) {
        if (each.waits_for != self_) continue;
        each.row = row++;
        row_depths_[each.row] = each.depth;
        row_noises_[each.row] = each.request.noise ? &*each.request.noise : nullptr;
    }
    begin_rows();
    for (int i = 0; num_sequences_ <= kFewRows && i < num_sequences_; ++i)
        if (is_active(i)) prepare(i);
}

void DraftNetwork::give_head(int row, const float* x) {
    std::copy_n(x, head_rows_.width,
                head_rows_.x + static_cast<std::size_t>(row) * head_rows_.width);
    if (const Linear& weights = head(row_depths_[row]); !weights.is_float())
        quantize(kernels_, weights, x, head_rows_, row, 0, head_rows_.width);
}

void DraftNetwork::check_states() const {
    for (const Seed& seed : seeds_)
        if (!seed.state) throw std::invalid_argument("a state of the target is needed for every token");
}

PartnerRule DraftNetwork::begin_draft(std::vector<Seed> seeds, std::span<int> tokens) {
    const Runtime::PassLock lock(runtime_);
    seeds_ = std::move(seeds);
    num_sequences_ = static_cast<int>(seeds_.size());
    begin(tokens);
    for (int token : tokens)
        if (token < 0 || token >= target_.shape().vocab_size)
            throw std::invalid_argument("token id " + std::to_string(token) + " is outside the vocabulary");
    is_first_ = true;
    return {.max_depth = max_depth(), .sees_depth_alone = sees_depth_alone()};
}

void DraftNetwork::answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) {
    const Runtime::PassLock lock(runtime_);
    trees_ = &trees;
    limits_ = &limits;
    self_ = self;
    row_depths_.assign(trees.size(), 0);
    row_noises_.assign(trees.size(), nullptr);
    num_blocks_ = (num_ids_ + kHeadBlock - 1) / kHeadBlock;
    block_stride_ = (num_blocks_ + kTile - 1) / kTile * kTile;
    const std::size_t rows = trees.size(), threads = pool_.size();
    begin_steps();
    runtime_.lay_out([&](Scratch& scratch) {
        aside_ = scratch.take<float>(threads * (kHeadRows * kHeadBlock + kTile));
        largest_ = scratch.take<Scored>(threads * rows * kLists * kNext);
        block_largest_ = scratch.take<float>(rows * block_stride_);
        block_sum_ = scratch.take<float>(rows * block_stride_);
        lay_out(scratch);
    });
    std::fill_n(block_largest_, rows * block_stride_, -kInfinity);
    std::fill_n(block_sum_, rows * block_stride_, 0.0f);
    std::fill_n(largest_, threads * rows * kLists * kNext, kNoScore);
    int most = 0;
    for (const GrowingTree& each : trees)
        most = std::max(most, each.request.num_steps[self] - each.num_taken(self));
    if (takes_one_step()) most = std::min(most, 1);
    const int sequences = row_pieces(num_sequences_);
    std::vector<int> phases, cell;
    plan_cell(cell);
    for (int step = 0; step < most; ++step) {
        phases.push_back(sequences);
        phases.insert(phases.end(), cell.begin(), cell.end());
        phases.insert(phases.end(), {num_blocks_, sequences});
    }
    begin_step();
    pool_.run([](void* network, Worker& worker) { static_cast<DraftNetwork*>(network)->run(worker); }, this,
              phases);
}

// Steps until no sequence takes part in the next one.
void DraftNetwork::run(Worker& worker) {
    while (!worker.is_over()) {
        worker.each([&](int sequence) {
            if (is_active(sequence)) prepare(sequence);
        });
        run_cell(worker);
        worker.each_and_rows(
            [&](int block) { read_head(block, worker.thread); }, num_sequences_,
            [&](int sequence) { learn_next(sequence); },
            [&] {
                is_first_ = false;
                num_rows() > 0 && !takes_one_step() ? begin_step() : worker.stop();
            });
    }
}

void DraftNetwork::read_logits(int block, int num_tiles, int first_row, int num_rows, float* out) {
    kernels_.linear(head(row_depths_[first_row]), block * kHeadTiles, num_tiles, head_rows_, first_row, num_rows,
                    {out, kHeadBlock});
}

// A block of tokens: its largest logits, and its part of the sum that makes them probabilities.
void DraftNetwork::read_head(int block, int thread) {
    const int rows = num_rows(), first_id = block * kHeadBlock,
              count = std::min(kHeadBlock, num_ids_ - first_id),
              num_tiles = (count + kTile - 1) / kTile, whole = num_tiles * kTile;
    float* aside = aside_ + thread * (kHeadRows * kHeadBlock + kTile);
    for (int first = 0, stop; first < rows; first = stop) {
        stop = end_of_rows(first, std::min(rows, first + kHeadRows),
                           [&](int depth) { return heads_.empty() ? nullptr : &head(depth); });
        read_logits(block, num_tiles, first, stop - first, aside);
        for (int row = first; row < stop; ++row) {
            float* logits = aside + (row - first) * kHeadBlock;
            const std::size_t depth = row_depths_[row];
            const float factor = factors_[std::min(depth, factors_.size() - 1)];
            if (factor != 1.0f) kernels_.scale(logits, whole, factor);
            std::fill(logits + count, logits + whole, -kInfinity);
            const std::size_t at = static_cast<std::size_t>(row) * block_stride_ + block;
            block_sum_[at] = kernels_.exp_sum(logits, nullptr, whole, block_largest_ + at);
            Scored* list = lists(thread, row);
            const auto find = [&](int i) {
                return kernels_.find(logits, i, count, list[kNext - 1].value);
            };
            for (int i = find(0); i < count; i = find(i + 1))
                insert({logits[i], first_id + i}, list, kNext);
            const TreeNoise* noise = row_noises_[row];
            if (!noise) continue;
            Perturbation how = noise->perturbation(row_depths_[row]);
            if (ids_.empty())
                how.first_token = static_cast<std::uint32_t>(first_id);
            else
                how.ids = noise_ids_.data() + first_id;
            list += kNext;
            float score = 0.0f;
            const auto find_score = [&](int i) {
                return kernels_.find_score(how, logits, i, count, list[kNext - 1].value, &score);
            };
            for (int i = find_score(0); i < count; i = find_score(i + 1))
                insert({score, first_id + i}, list, kNext);
        }
    }
}

Scored* DraftNetwork::lists(int thread, int row) const {
    return largest_ + (static_cast<std::size_t>(thread) * num_sequences() + row) * kLists * kNext;
}

// The logarithm of a row's sum of e^logit, from those of its blocks.
float DraftNetwork::log_sum(int row) const {
    const std::size_t first = static_cast<std::size_t>(row) * block_stride_;
    float largest;
    const float total =
        kernels_.exp_sum(block_largest_ + first, block_sum_ + first, block_stride_, &largest);
    return largest + std::log(total);
}

// What may follow the token of a sequence's step; then its tree grows as far as is known.
void DraftNetwork::learn_next(int sequence) {
    if (!is_active(sequence)) return;
    GrowingTree& tree = (*trees_)[sequence];
    Scored* list = lists(0, tree.row);
    for (int thread = 1; thread < pool_.size(); ++thread)
        for (int i = 0; i < kLists * kNext; ++i)
            insert(lists(thread, tree.row)[i], list + i / kNext * kNext, kNext);
    const Probabilities found = next_tokens(sequence);
    for (int thread = 0; thread < pool_.size(); ++thread)
        std::fill_n(lists(thread, tree.row), kLists * kNext, kNoScore);
    tree.answer(step_of(sequence), found, *limits_);
}

// What the network says may come next in a sequence's row: its likeliest tokens, then those of the largest scores.
Probabilities DraftNetwork::next_tokens(int sequence) const {
    const GrowingTree& draft = this->draft(sequence);
    Probabilities found;
    const Scored* list = lists(0, draft.row);
    const double sum = log_sum(draft.row);
    for (int i = 0; i < kLists * kNext; ++i) {
        if (list[i].id == kNoScore.id) continue;
        const int token = ids_.empty() ? list[i].id : static_cast<int>(ids_[list[i].id]);
        const auto is_token = [=](const auto& each) { return each.first == token; };
        if (i >= kNext && std::any_of(found.begin(), found.end(), is_token)) continue;
        double logit = list[i].value;
        if (i >= kNext) {
            float noise = 0.0f;
            kernels_.noise(draft.request.noise->key(draft.depth), &token, 1, &noise);
            logit = (logit - noise) * draft.request.noise->temperature;
        }
        double p = confidence(sequence) * std::exp(logit - sum);
        if (p > 1.0) p = 1.0;  // NaN stays
        found.push_back({token, p});
    }
    return found;
}

}  // namespace forerun
