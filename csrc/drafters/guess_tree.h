// One tree of guesses: drafting/best_first.py and ngram/ngram_model.py explain it and are its reference.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "drafters/suffix_index.h"
#include "drafters/token_table.h"

namespace forerun {

struct GuessTree {
    std::vector<int> tokens, parents;
    std::vector<double> chances;
};

using Chances = std::vector<std::pair<int, double>>;  // tokens, each once

// The sampler's noise below a text's last token: what `core/random.py` keeps of a sequence, the position of its
// next token, and the request's temperature and filters.
struct TreeNoise {
    std::uint64_t seed = 0, stream = 0, position = 0;
    double temperature = 1.0, top_p = 1.0, min_p = 0.0;
    std::size_t top_k = 0;  // 0: all

    std::uint64_t key(int depth) const;
    // The chances of tokens at a depth to be the sampler's choice, for who sees its noise.
    void see(int depth, Chances& next) const;

  private:
    void filter(Chances& next) const;
};

using Noises = std::vector<std::optional<TreeNoise>>;  // of each text; empty: all requests are greedy

inline std::optional<TreeNoise> noise_of(const Noises& noises, std::size_t i) {
    return noises.empty() ? std::nullopt : noises[i];
}

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
                    double min_chance, const std::optional<TreeNoise>& noise);

}  // namespace forerun
