#include "drafters/growth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "isa/isa.h"
#include "model/draw.h"

namespace forerun {
namespace {

// Finds what may follow a row of logits, in buffers that are kept from row to row.
class Likeliest {
  public:
    // The likeliest tokens, and after them those of the largest scores with the noise; probabilities without it.
    Probabilities find(const StepLogits& row, int depth, const TreeNoise* noise, float factor) {
        const int count = static_cast<int>(row.logits.size()), whole = (count + kTile - 1) / kTile * kTile;
        logits_.assign(static_cast<std::size_t>(whole) + kTile, kNobody.value);
        std::copy(row.logits.begin(), row.logits.end(), logits_.begin());
        if (factor != 1.0f) kernels_.scale(logits_.data(), whole, factor);
        float largest = 0.0f;
        const double total = kernels_.exp_sum(logits_.data(), nullptr, whole, &largest);
        if (!std::isfinite(largest) || !std::isfinite(total)) return {};
        Scored list[2 * kNext];
        std::fill_n(list, 2 * kNext, kNobody);
        const auto next = [&](int i) {  // what is banned is minus infinity
            const float limit = std::max(list[kNext - 1].value, std::numeric_limits<float>::lowest());
            return kernels_.find(logits_.data(), i, count, limit);
        };
        for (int i = next(0); i < count; i = next(i + 1)) insert({logits_[i], i}, list, kNext);
        if (noise) {
            ids_.assign(row.tokens.begin(), row.tokens.end());
            Perturbation how = noise->perturbation(depth);
            if (!ids_.empty()) how.ids = ids_.data();
            find_largest(kernels_, how, logits_.data(), count, kNext, list + kNext);
        }
        Probabilities found;
        for (const Scored& each : list) {
            if (each.id == kNobody.id) continue;
            const int token = row.tokens.empty() ? each.id : static_cast<int>(row.tokens[each.id]);
            const auto is_token = [=](const auto& known) { return known.first == token; };
            if (std::any_of(found.begin(), found.end(), is_token)) continue;
            found.push_back({token, std::exp(static_cast<double>(logits_[each.id]) - largest) / total});
        }
        return found;
    }

  private:
    const Kernels& kernels_ = kernels_for("auto");
    std::vector<float> logits_;
    std::vector<std::int32_t> ids_;
};

}  // namespace

void GrowingTree::begin(const GrowthLimits& limits) {
    if (request.num_nodes <= 0) return;
    if (request.ngrams) places_ = {request.ngrams->root(request.context)};
    expand(-1, limits);
    while (!is_active && take()) expand(-1, limits);
}

void GrowingTree::answer(int step, const Probabilities& found, const GrowthLimits& limits) {
    is_active = false;
    add(step, blended(found), limits.min_chance);
    if (limits.sees_depth_alone) {
        by_depth_.resize(std::max<std::size_t>(by_depth_.size(), next.depth + 1));
        by_depth_[next.depth] = found;
    }
    while (!is_active && take()) expand(step, limits);
}

// Chooses who says what follows `next`, when `step` was the network's last step: the network, whose next step is then
// one over it, or the n-grams alone. A further guesser would be asked here.
void GrowingTree::expand(int step, const GrowthLimits& limits) {
    const bool may = step + 1 < limits.num_steps && next.depth < limits.max_depth && next.step != kNoStep;
    const bool wants = doubts(limits) && may;
    const std::size_t depth = next.depth;
    if (depth < by_depth_.size() && !by_depth_[depth].empty())
        add(next.step, blended(by_depth_[depth]), limits.min_chance);
    else if (wants)
        is_active = true;
    else if (request.ngrams)
        add(kNoStep, request.ngrams->last(), limits.min_chance);
}

// Whether what the n-grams guess after `next` is needed and wrong often enough. Asks them.
bool GrowingTree::doubts(const GrowthLimits& limits) {
    if (!request.ngrams) return true;
    Probabilities known = request.ngrams->next(places_.back());
    if (request.noise) request.noise->see(next.depth, known);
    double best = 0.0;
    for (const auto& [token, p] : known) best = std::max(best, p);
    return path_probability_ * (1.0 - best) >= limits.min_doubt;
}

// The mean with what the n-grams said last, their tokens first.
Probabilities GrowingTree::blended(const Probabilities& found) const {
    if (!request.ngrams) return found;
    Probabilities mean = request.ngrams->last();
    for (auto& [token, p] : mean) p *= 1 - kShare;
    const auto known = static_cast<std::ptrdiff_t>(mean.size());
    for (const auto& [token, p] : found) {
        const int same = token;
        const auto at = std::find_if(mean.begin(), mean.begin() + known,
                                     [&](const auto& each) { return each.first == same; });
        if (at != mean.begin() + known)
            at->second += kShare * p;
        else
            mean.push_back({token, kShare * p});
    }
    return mean;
}

// Tokens that may follow `next`, as step `step` or the n-grams alone say.
void GrowingTree::add(int step, Probabilities following, double min_chance) {
    if (request.noise) request.noise->see(next.depth, following);
    const int parent = static_cast<int>(tree.tokens.size()) - 1;
    for (const auto& [token, p] : following) {
        if (!(path_probability_ * p >= min_chance)) continue;
        candidates_.push_back(
            {path_probability_ * p, serial_++, token, parent, p, step, next.depth + 1});
        std::push_heap(candidates_.begin(), candidates_.end());
    }
}

// Takes the most probable node, which becomes `next`; false where nothing is to be said of what follows it.
bool GrowingTree::take() {
    const auto is_full = [&] { return static_cast<int>(tree.tokens.size()) >= request.num_nodes; };
    if (candidates_.empty() || is_full()) return false;
    std::pop_heap(candidates_.begin(), candidates_.end());
    const Candidate node = candidates_.back();
    candidates_.pop_back();
    tree.tokens.push_back(node.token);
    tree.parents.push_back(node.parent);
    tree.probabilities.push_back(node.p);
    if (is_full()) return false;
    next = {node.step, node.token, node.depth};
    path_probability_ = node.path_probability;
    if (request.ngrams)
        places_.push_back(request.ngrams->follow(places_[node.parent + 1], node.token));
    return true;
}

GuessTree grow_tree(SequenceRequest request, double min_chance) {
    GrowingTree growing(std::move(request));
    growing.begin({.min_chance = min_chance});
    return std::move(growing.tree);
}

std::vector<GuessTree> grow(DraftRequest request, float temperature, const TakeSteps& take) {
    const GrowthLimits& limits = request.limits;
    std::vector<GrowingTree> trees;
    for (SequenceRequest& sequence : request.sequences) {
        trees.emplace_back(std::move(sequence));
        trees.back().begin(limits);
    }
    Likeliest likeliest;
    std::vector<Step> steps;
    for (int number = 0; number < limits.num_steps; ++number) {
        steps.clear();
        for (std::size_t i = 0; i < trees.size(); ++i)
            if (const auto& next = trees[i].next; trees[i].is_active)
                steps.push_back({static_cast<int>(i), next.step, next.token, next.depth});
        if (steps.empty()) break;
        const std::vector<StepLogits> rows = take(number, steps);
        if (rows.size() != steps.size())
            throw std::invalid_argument("a row of logits is needed for every step");
        for (std::size_t i = 0; i < steps.size(); ++i) {
            GrowingTree& tree = trees[steps[i].sequence];
            const TreeNoise* noise = tree.request.noise ? &*tree.request.noise : nullptr;
            const float factor = noise ? 1.0f : 1.0f / temperature;
            tree.answer(number, likeliest.find(rows[i], steps[i].depth, noise, factor), limits);
        }
    }
    std::vector<GuessTree> grown;
    for (GrowingTree& each : trees) grown.push_back(std::move(each.tree));
    return grown;
}

}  // namespace forerun
