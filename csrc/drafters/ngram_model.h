// What tables and texts say may come next; tests/oracles/ngram_model.py says the same.

#pragma once

#include <utility>
#include <vector>

#include "drafters/suffix_index.h"
#include "drafters/token_table.h"
#include "drafters/tree_noise.h"

namespace forerun {

// A place in a tree: the last tokens, and where they stood in each index, longest match first.
struct GuessPlace {
    std::vector<int> tail;
    std::vector<std::vector<Occurrence>> places;
};

// What tables and indexes say may come next.
class NGramModel {
  public:
    NGramModel(const FileTable* file, const LiveTable& live, std::vector<const SuffixIndex*> indexes)
        : file_(file), live_(&live), indexes_(std::move(indexes)) {}

    GuessPlace root(const std::vector<int>& context) const;
    GuessPlace follow(const GuessPlace& here, int token) const;
    // Every level corrects what the levels before it say. Valid until it is asked again.
    const Probabilities& next(const GuessPlace& here);
    const Probabilities& last() const { return probabilities_; }

  private:
    void blend();

    const FileTable* file_;
    const LiveTable* live_;
    std::vector<const SuffixIndex*> indexes_;
    std::vector<std::uint64_t> hashes_;
    Counts level_;
    Probabilities probabilities_;
};

}  // namespace forerun
