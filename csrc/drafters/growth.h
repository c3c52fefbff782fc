// Trees of guesses, best first: the next node is the one whose path is the most probable.
//
// What says which tokens may follow a node is an n-gram model, a network, or both. The network steps over a node when
// it is taken, while there are steps left; sequences step side by side, so that a step reads the weights once. With
// both, a token's probability is a mean of the two: kShare of the network's, the rest the n-gram model's, and the
// network steps only where it is needed: over a node that is reached, and where the n-gram model's best guess is
// wrong, with a probability of at least `min_doubt`. Elsewhere the n-gram model's probabilities stand alone.
//
// tests/oracles/growth.py grows the same trees, node after node.

#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "drafters/ngram_model.h"
#include "drafters/tree_noise.h"
#include "model/scored.h"
#include "model/types.h"

namespace forerun {

inline constexpr int kMaxSteps = 16;    // of a draft
inline constexpr int kNext = 8;         // tokens after a step that may become nodes: the likeliest
inline constexpr double kShare = 0.55;  // of the network in a probability that n-grams also give

struct GuessTree {
    std::vector<int> tokens, parents;
    std::vector<double> probabilities;  // of each node once its parent is right
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

// How far trees grow. Steps of the network at most, over nodes above `max_depth`; the probability of a node's path, at
// least; with n-grams, the probability that their best guess at a node is needed and wrong from which on the network
// steps over it. Where the network's guesses depend on the depth alone, it takes one step a depth.
struct GrowthLimits {
    int num_steps = 0, max_depth = kMaxSteps;
    double min_chance = 0.0, min_doubt = 0.0;
    bool sees_depth_alone = false;
};

// What one draft of several sequences is made of.
struct DraftRequest {
    std::vector<SequenceRequest> sequences;
    GrowthLimits limits;
};

// A sequence's tree while it grows.
class GrowingTree {
  public:
    // The node that was taken last. `step` is the network's that guessed it: -1 of the sequence's last token, or
    // kNoStep.
    struct Node {
        int step = -1, token = 0, depth = 0;
    };

    explicit GrowingTree(SequenceRequest given)
        : request(std::move(given)), next{-1, request.token, 0} {}
    // Grows until the network has to say what follows `next`, or the tree is done.
    void begin(const GrowthLimits& limits);
    // Goes on with what the network's step `step` says may follow `next`.
    void answer(int step, const Probabilities& found, const GrowthLimits& limits);

    SequenceRequest request;
    GuessTree tree;
    Node next;
    bool is_active = false;  // the network's next step is one over `next`

  private:
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

    void expand(int step, const GrowthLimits& limits);
    bool doubts(const GrowthLimits& limits);
    bool take();
    void add(int step, Probabilities following, double min_chance);
    Probabilities blended(const Probabilities& found) const;

    double path_probability_ = 1.0;       // of `next`
    std::vector<GuessPlace> places_;      // as the n-grams know them: the root's, then the nodes'
    std::vector<Probabilities> by_depth_;  // where the network's guesses depend on nothing else
    std::vector<Candidate> candidates_;   // a heap
    int serial_ = 0;
};

// Grows a tree of what n-grams say alone.
GuessTree grow_tree(SequenceRequest request, double min_chance);

// A token that a network takes: of a sequence, after its step `parent` (-1: its first).
struct Step {
    int sequence, parent, token, depth;
};

// What a network says of a step: logits (count) of tokens, none: the first ids.
struct StepLogits {
    std::span<const float> logits;
    std::span<const std::int64_t> tokens;
};

// Computes the steps of one number, a sequence at most once.
using TakeSteps = std::function<std::vector<StepLogits>(int number, const std::vector<Step>& steps)>;

// Grows trees of what a network says that `take` runs. Logits of a greedy sequence are divided by `temperature`.
std::vector<GuessTree> grow(DraftRequest request, float temperature, const TakeSteps& take);

}  // namespace forerun
