// One tree of guesses: drafting/best_first.py explains it; tests/oracles/ngram_model.py grows the same.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "drafters/suffix_index.h"
#include "drafters/token_table.h"

namespace forerun {

struct GuessTree {
    std::vector<int> tokens, parents;
    std::vector<double> probabilities;  // of each node once its parent is right
};

using Probabilities = std::vector<std::pair<int, double>>;  // tokens, each once

// The sampler's noise below a text's last token: what `core/random.py` keeps of a sequence, the position of its
// next token, and the request's temperature and filters.
struct TreeNoise {
    std::uint64_t seed = 0, stream = 0, position = 0;
    double temperature = 1.0, top_p = 1.0, min_p = 0.0;
    std::size_t top_k = 0;  // 0: all

    std::uint64_t key(int depth) const;
    // The probabilities of tokens at a depth to be the sampler's choice, for who sees its noise.
    void see(int depth, Probabilities& next) const;

  private:
    void filter(Probabilities& next) const;
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

// What is drafted below one sequence's last token, and what that is guessed from.
struct SequenceRequest {
    int token = 0, num_nodes = 0;
    std::optional<NGramModel> ngrams;  // of its text, whose last tokens are `context`
    std::vector<int> context;
    std::optional<TreeNoise> noise;  // none: the request is greedy
    const float* state = nullptr;    // (D,) that the target's head read before the token
    int slot = 0;                    // in a network's own cache
};

// A tree that grows best first: the node whose path is the most probable is taken next.
struct GrowingTree {
    // The node that was taken last. `step` is the network's that guessed it: -1 of the sequence's last token, or
    // kNoStep.
    struct Node {
        int step = -1, token = 0, depth = 0;
    };
    // A node that may be taken; `serial` decides among equally probable ones.
    struct Candidate {
        double path_probability;
        int serial, token, parent;
        double p;
        int step, depth;
        bool operator<(const Candidate& other) const {
            if (path_probability != other.path_probability)
                return path_probability < other.path_probability;
            return serial > other.serial;
        }
    };

    static constexpr int kNoStep = -2;  // the network was not asked over the node above

    explicit GrowingTree(SequenceRequest given);
    // Tokens that may follow `next`, as step `step` or the n-grams alone say.
    void add(int step, Probabilities following, double min_chance);
    // Takes the most probable node, which becomes `next`; false where nothing is to be said of what follows it.
    bool take();

    SequenceRequest request;
    GuessTree tree;
    Node next;
    double path_probability = 1.0;   // of `next`
    std::vector<GuessPlace> places;  // as the n-grams know them: the root's, then the nodes'

  private:
    std::vector<Candidate> candidates_;  // a heap
    int serial_ = 0;
};

// Grows a tree of what n-grams say alone.
GuessTree grow_tree(SequenceRequest request, double min_chance);

}  // namespace forerun
