// One tree of guesses: drafting/best_first.py and ngram/ngram_model.py explain it and are its reference.

#pragma once

#include <utility>
#include <vector>

#include "drafters/suffix_index.h"
#include "drafters/token_table.h"

namespace forerun {

struct GuessTree {
    std::vector<int> tokens, parents;
    std::vector<double> chances;
};

// A place in a tree: the last tokens, and where they stood in each index, longest match first.
struct GuessPlace {
    std::vector<int> tail;
    std::vector<std::vector<Occurrence>> places;
};

// What tables and indexes say may come next.
class NGramModel {
  public:
    using Chances = std::vector<std::pair<int, double>>;  // tokens, each once

    NGramModel(const FileTable* file, const LiveTable& live, std::vector<const SuffixIndex*> indexes)
        : file_(file), live_(&live), indexes_(std::move(indexes)) {}

    GuessPlace root(const std::vector<int>& context) const;
    GuessPlace follow(const GuessPlace& here, int token) const;
    // Every level corrects what the levels before it say. Valid until it is asked again.
    const Chances& next(const GuessPlace& here);
    const Chances& last() const { return chances_; }

  private:
    void blend();

    const FileTable* file_;
    const LiveTable* live_;
    std::vector<const SuffixIndex*> indexes_;
    std::vector<std::uint64_t> hashes_;
    Counts level_;
    Chances chances_;
};

GuessTree grow_tree(const std::vector<int>& context, NGramModel evidence, int num_nodes,
                    double min_chance);

}  // namespace forerun
