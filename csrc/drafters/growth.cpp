#include "drafters/growth.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

#include "isa/isa.h"
#include "model/draw.h"

namespace forerun {
namespace {

// Finds what may follow a row of logits, in buffers that are kept from row to row.
class TopTokens {
  public:
    // The likeliest tokens, and after them those of the largest scores with the noise; probabilities without it.
    Probabilities find(const StepLogits& row, int depth, const TreeNoise* noise, float factor) {
        const int count = static_cast<int>(row.logits.size()), whole = (count + kTile - 1) / kTile * kTile;
        logits_.assign(static_cast<std::size_t>(whole) + kTile, kNoScore.value);
        std::copy(row.logits.begin(), row.logits.end(), logits_.begin());
        if (factor != 1.0f) kernels_.scale(logits_.data(), whole, factor);
        float largest = 0.0f;
        const double total = kernels_.exp_sum(logits_.data(), nullptr, whole, &largest);
        if (!std::isfinite(largest) || !std::isfinite(total)) return {};
        Scored list[2 * kNext];
        std::fill_n(list, 2 * kNext, kNoScore);
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
            if (each.id == kNoScore.id) continue;
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
    start_node();
    ask_from(0, limits);
    grow_on(limits);
}

void GrowingTree::answer(int number, const Probabilities& found, const GrowthLimits& limits) {
    const int partner = std::exchange(waits_for, kNoPartner);
    const PartnerRule& rule = limits.partners[partner];
    steps_[place_][partner] = number;
    ++num_taken_[partner];
    if (has_spoken_) {
        const auto [token, p] = best();
        words.push_back({partner, place_, doubt(p), token, -1, following_, found});
        blend(found, rule.share);
        words.back().best = best().first;
    } else {
        blend(found, rule.share);
    }
    if (rule.sees_depth_alone) {
        auto& known = by_depth_[partner];
        known.resize(std::max<std::size_t>(known.size(), depth + 1));
        known[depth] = found;
    }
    ask_from(partner + 1, limits);
    grow_on(limits);
}

void GrowingTree::grow_on(const GrowthLimits& limits) {
    while (waits_for == kNoPartner && take()) {
        start_node();
        ask_from(0, limits);
    }
}

// Asks the n-grams what follows the node.
void GrowingTree::start_node() {
    has_spoken_ = request.ngrams.has_value();
    following_.clear();
    if (has_spoken_) following_ = request.ngrams->next(places_[place_]);
}

// Asks a partner and those behind it; with the first that has to step the tree waits, without one it is said what
// follows.
void GrowingTree::ask_from(int partner, const GrowthLimits& limits) {
    for (const int count = static_cast<int>(limits.partners.size()); partner < count; ++partner) {
        const PartnerRule& rule = limits.partners[partner];
        const auto& known = by_depth_[partner];
        if (static_cast<std::size_t>(depth) < known.size() && !known[depth].empty()) {
            steps_[place_][partner] = step_above(partner);
            blend(known[depth], rule.share);
        } else if (may_step(partner, rule) && (!has_spoken_ || doubt(best().second) >= rule.min_doubt)) {
            waits_for = partner;
            return;
        }
    }
    if (has_spoken_) add(limits.min_chance);
}

bool GrowingTree::may_step(int partner, const PartnerRule& rule) const {
    return num_taken_[partner] < request.num_steps[partner] && depth < rule.max_depth &&
           (rule.knows_paths || step_above(partner) != kNoStep);
}

// The best guess so far and its chance.
std::pair<int, double> GrowingTree::best() const {
    Probabilities known = following_;
    if (request.noise) request.noise->see(depth, known);
    std::pair<int, double> best{-1, 0.0};
    for (const auto& each : known)
        if (each.second > best.second) best = each;
    return best;
}

Step GrowingTree::next_step(int sequence, const PartnerRule& rule) const {
    Step step{sequence, -1, token, depth, {}};
    for (int place = place_; place > 0 && step.parent < 0; place = above(place)) {
        step.path.insert(step.path.begin(), tree.tokens[place - 1]);
        step.parent = steps_[above(place)][waits_for];
        if (!rule.knows_paths) break;
    }
    step.parent = std::max(step.parent, -1);
    return step;
}

// The mean with what was said before, its tokens first.
void GrowingTree::blend(const Probabilities& found, double share) {
    if (!std::exchange(has_spoken_, true)) {
        following_ = found;
        return;
    }
    for (auto& [token, p] : following_) p *= 1 - share;
    const auto known = static_cast<std::ptrdiff_t>(following_.size());
    for (const auto& [token, p] : found) {
        const int same = token;
        const auto at = std::find_if(following_.begin(), following_.begin() + known,
                                     [&](const auto& each) { return each.first == same; });
        if (at != following_.begin() + known)
            at->second += share * p;
        else
            following_.push_back({token, share * p});
    }
}

// Tokens that may follow the node, as was said.
void GrowingTree::add(double min_chance) {
    if (request.noise) request.noise->see(depth, following_);
    for (const auto& [token, p] : following_) {
        if (!(path_probability_ * p >= min_chance)) continue;
        candidates_.push_back({path_probability_ * p, serial_++, token, place_ - 1, p, depth + 1});
        std::push_heap(candidates_.begin(), candidates_.end());
    }
}

// Takes the most probable node; false where nothing is to be said of what follows it.
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
    token = node.token;
    depth = node.depth;
    path_probability_ = node.path_probability;
    place_ = static_cast<int>(tree.tokens.size());
    steps_.push_back(kNoSteps);
    if (request.ngrams)
        places_.push_back(request.ngrams->follow(places_[node.parent + 1], node.token));
    return true;
}

std::vector<Credit> score_steps(const std::vector<Word>& words, const GuessTree& tree, const std::vector<int>& tokens) {
    std::vector<int> places{0};  // the nodes that were right, from the root on
    for (const int count = static_cast<int>(tree.tokens.size()); places.size() <= tokens.size();) {
        int node = 0;
        while (node < count &&
               (tree.parents[node] != places.back() - 1 || tree.tokens[node] != tokens[places.size() - 1]))
            ++node;
        if (node == count) break;
        places.push_back(node + 1);
    }
    const auto chance = [](const Probabilities& said, int token) {
        for (const auto& [each, p] : said)
            if (each == token) return p;
        return 0.0;
    };
    std::vector<Credit> credits;
    std::vector<std::pair<std::size_t, std::size_t>> turned;  // depths, and credits
    for (const Word& word : words) {
        Credit& credit = credits.emplace_back(Credit{word.partner, word.doubt, 0.0, 0.0, 0});
        const std::size_t depth = std::find(places.begin(), places.end(), word.place) - places.begin();
        if (depth >= std::min(places.size(), tokens.size())) continue;
        credit.before = chance(word.before, tokens[depth]);
        credit.own = chance(word.own, tokens[depth]);
        if (word.best == tokens[depth] && word.best_before != word.best) turned.push_back({depth, credits.size() - 1});
    }
    std::sort(turned.begin(), turned.end());
    for (std::size_t i = 0; i < turned.size(); ++i) {
        const std::size_t stop = i + 1 < turned.size() ? turned[i + 1].first : places.size() - 1;
        credits[turned[i].second].brought = static_cast<int>(stop - turned[i].first);
    }
    return credits;
}

GuessTree grow_tree(SequenceRequest request, double min_chance) {
    GrowingTree growing(std::move(request));
    growing.begin({min_chance, {}});
    return std::move(growing.tree);
}

void SteppingPartner::answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) {
    std::vector<Step> steps;
    for (std::size_t i = 0; i < trees.size(); ++i)
        if (trees[i].waits_for == self)
            steps.push_back(trees[i].next_step(static_cast<int>(i), limits.partners[self]));
    const std::vector<StepLogits> rows = take_(number_, steps);
    if (rows.size() != steps.size())
        throw std::invalid_argument("a row of logits is needed for every step");
    TopTokens likeliest;
    for (std::size_t i = 0; i < steps.size(); ++i) {
        GrowingTree& tree = trees[steps[i].sequence];
        const TreeNoise* noise = tree.request.noise ? &*tree.request.noise : nullptr;
        const float factor = noise ? 1.0f : 1.0f / temperature_;
        tree.answer(number_, likeliest.find(rows[i], steps[i].depth, noise, factor), limits);
    }
    ++number_;
}

std::vector<GrowingTree> grow(std::vector<SequenceRequest> sequences, const GrowthLimits& limits,
                              const std::vector<Partner*>& partners) {
    std::vector<GrowingTree> trees;
    for (SequenceRequest& sequence : sequences) {
        trees.emplace_back(std::move(sequence));
        trees.back().begin(limits);
    }
    for (std::size_t i = 0; i < partners.size();) {  // a partner steps once no tree waits for a cheaper one
        const int self = static_cast<int>(i);
        const bool is_awaited = std::any_of(trees.begin(), trees.end(),
                                            [=](const GrowingTree& each) { return each.waits_for == self; });
        if (is_awaited) partners[i]->answer(trees, self, limits);
        i = is_awaited ? 0 : i + 1;
    }
    return trees;
}

}  // namespace forerun
