#include "drafters/guess_tree.h"

#include <algorithm>
#include <cmath>

#include "isa/isa.h"

namespace forerun {
namespace {

// Those of tests/oracles/ngram_model.py and drafting/tree_noise.py.
constexpr double kPrior = 6, kLiveWeight = 16;
constexpr int kMaxPlaces = 16;
constexpr double kSpread = 1.25, kMeanNoise = 0.5772156649015329;

std::uint64_t mix64(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

double left(const Probabilities& probabilities) {
    double rest = 1.0;
    for (const auto& [token, p] : probabilities) rest -= p;
    return std::max(rest, 1e-9);
}

void add(Probabilities& sums, int token, double value) {
    for (auto& [known, sum] : sums) {
        if (known == token) {
            sum += value;
            return;
        }
    }
    sums.push_back({token, value});
}

}  // namespace

std::uint64_t TreeNoise::key(int depth) const {
    const std::uint64_t place = position + static_cast<std::uint64_t>(depth) + 1;
    return mix64(mix64(seed + 0x9E3779B97F4A7C15u * place) + stream);
}

// Only tokens that the request's filters are likely to leave, as shares of all that they leave.
void TreeNoise::filter(Probabilities& next) const {
    if (top_p == 1.0 && min_p == 0.0 && top_k == 0) return;
    Probabilities ranked = next;
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    const double least = min_p * ranked[0].second;
    const std::size_t most = top_k != 0 ? top_k : ranked.size();
    double kept = 0.0;
    std::size_t count = 0;
    for (; count < std::min(most, ranked.size()); ++count) {
        const double p = ranked[count].second;
        if (kept >= top_p || p < least) break;
        kept += p;
    }
    if (count == next.size()) kept = std::max(kept, top_p);  // the filters may leave more
    next.assign(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count));
    for (auto& [token, p] : next) p /= kept;
}

void TreeNoise::see(int depth, Probabilities& next) const {
    if (next.empty()) return;
    filter(next);
    std::vector<std::int32_t> tokens;
    for (const auto& [token, p] : next) tokens.push_back(token);
    std::vector<float> noise(tokens.size());
    const int count = static_cast<int>(tokens.size());
    kernels_for("auto").noise(key(depth), tokens.data(), count, noise.data());
    const auto weight = [&](double p, double g) {
        return std::exp((std::log(p) + temperature * g) / kSpread);
    };
    double total = weight(left(next), kMeanNoise);
    for (int i = 0; i < count; ++i) total += next[i].second = weight(next[i].second, noise[i]);
    for (auto& [token, p] : next) p /= total;
}

GuessPlace NGramModel::root(const std::vector<int>& context) const {
    const std::size_t order = std::min(context.size(), static_cast<std::size_t>(live_->order()));
    GuessPlace here{{context.end() - static_cast<std::ptrdiff_t>(order), context.end()}, {}};
    for (const SuffixIndex* index : indexes_)
        here.places.push_back(index->occurrences(context, kMaxPlaces));
    return here;
}

const Probabilities& NGramModel::next(const GuessPlace& here) {
    probabilities_.clear();
    // Memory answers slowly beside the passes of a model: everything is asked for before the first is read.
    hashes_.clear();
    for (std::size_t n = 1; n <= here.tail.size(); ++n) {
        const std::uint64_t shorter = hashes_.empty() ? 0 : hashes_.back();
        hashes_.push_back(grow_hash(shorter, here.tail[here.tail.size() - n]));
        if (file_) file_->prefetch_offset(hashes_.back());
        live_->prefetch(hashes_.back());
    }
    for (std::uint64_t hash : hashes_)
        if (file_) file_->prefetch_bucket(hash);
    for (std::uint64_t hash : hashes_) {
        level_.total = 0;
        level_.tokens.clear();
        if (file_) file_->find(hash, 1.0, level_);
        live_->find(hash, kLiveWeight, level_);
        blend();
    }
    for (std::size_t i = 0; i < indexes_.size(); ++i) {
        level_.total = 0;
        level_.tokens.clear();
        for (const auto& [match, position] : here.places[i]) {
            const std::optional<int> token = indexes_[i]->token_at(position);
            if (!token) continue;
            const double weight = kPrior / 2 * match;
            level_.total += weight;
            add(level_.tokens, *token, weight);
        }
        blend();
    }
    for (auto& [token, p] : probabilities_) p = std::min(p, 1.0);
    return probabilities_;
}

void NGramModel::blend() {
    if (level_.total == 0) return;
    const double scale = kPrior / (level_.total + kPrior);
    for (auto& [token, p] : probabilities_) p *= scale;
    for (const auto& [token, seen] : level_.tokens)
        add(probabilities_, token, seen / (level_.total + kPrior));
}

GuessPlace NGramModel::follow(const GuessPlace& here, int token) const {
    GuessPlace there{here.tail, std::vector<std::vector<Occurrence>>(indexes_.size())};
    there.tail.push_back(token);
    if (there.tail.size() > static_cast<std::size_t>(live_->order()))
        there.tail.erase(there.tail.begin());
    for (std::size_t i = 0; i < indexes_.size(); ++i)
        for (const auto& [match, position] : here.places[i])
            if (indexes_[i]->token_at(position) == token)
                there.places[i].push_back({match + 1, position + 1});
    return there;
}

GrowingTree::GrowingTree(SequenceRequest given) : request(std::move(given)), next{-1, request.token, 0} {
    if (request.ngrams && request.num_nodes > 0) places = {request.ngrams->root(request.context)};
}

void GrowingTree::add(int step, Probabilities following, double min_chance) {
    if (request.noise) request.noise->see(next.depth, following);
    const int parent = static_cast<int>(tree.tokens.size()) - 1;
    for (const auto& [token, p] : following) {
        if (!(path_probability * p >= min_chance)) continue;
        candidates_.push_back(
            {path_probability * p, serial_++, token, parent, p, step, next.depth + 1});
        std::push_heap(candidates_.begin(), candidates_.end());
    }
}

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
    path_probability = node.path_probability;
    if (request.ngrams)
        places.push_back(request.ngrams->follow(places[node.parent + 1], node.token));
    return true;
}

GuessTree grow_tree(SequenceRequest request, double min_chance) {
    GrowingTree growing(std::move(request));
    if (growing.request.num_nodes <= 0) return {};
    NGramModel& ngrams = *growing.request.ngrams;
    do {
        growing.add(GrowingTree::kNoStep, ngrams.next(growing.places.back()), min_chance);
    } while (growing.take());
    return std::move(growing.tree);
}

}  // namespace forerun
