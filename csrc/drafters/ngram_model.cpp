#include "drafters/ngram_model.h"

#include <algorithm>
#include <optional>

namespace forerun {
namespace {

// Those of tests/oracles/ngram_model.py.
constexpr double kPrior = 6, kLiveWeight = 16;
constexpr int kMaxPlaces = 16;

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

GuessPlace NGramModel::root(const std::vector<int>& context) const {
    const std::size_t order = std::min(context.size(), static_cast<std::size_t>(live_->order()));
    GuessPlace here{{context.end() - static_cast<std::ptrdiff_t>(order), context.end()}, {}};
    for (const SuffixIndex* index : indexes_)
        here.places.push_back(index->occurrences(context, kMaxPlaces));
    return here;
}

const Probabilities& NGramModel::next(const GuessPlace& here) {
    probabilities_.clear();
    // A cache miss is expensive: everything is prefetched before the first is read.
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

}  // namespace forerun
