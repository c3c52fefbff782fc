// Trees of guesses, best first: the next node is the one whose path is the most probable.
//
// What says which tokens may follow a node are an n-gram model and partners, networks and models that step over nodes,
// the cheapest first. Each is asked where those before it doubt: where the node is reached, and the best guess so far
// is wrong, with a probability of at least the partner's `min_doubt`. What it says is blended with what was said
// before it: a token's probability is `share` of the partner's, the rest of the others'. Sequences step side by side,
// so that a step reads the weights once.
//
// tests/oracles/growth.py grows the same trees, node after node.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "drafters/ngram_model.h"
#include "drafters/tree_noise.h"
#include "model/scored.h"
#include "model/types.h"

namespace forerun {

inline constexpr int kMaxSteps = 16;    // of a partner in a draft
inline constexpr int kMaxPartners = 4;
inline constexpr int kNext = 8;         // tokens after a step that may become nodes: the likeliest

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
    std::array<int, kMaxPartners> num_steps{};  // of each partner at most; 0: it is not asked
};

// When a partner is asked, and the weight of its probabilities against those of the partners before it.
struct PartnerRule {
    double min_doubt = 0.0, share = 1.0;
    int max_depth = kMaxSteps;      // it steps over nodes above
    bool sees_depth_alone = false;  // its guesses depend on nothing else: one step a depth
    bool knows_paths = false;       // it may step over a node without a step over the one before
};

struct GrowthLimits {
    double min_chance = 0.0;  // of a node's path
    std::vector<PartnerRule> partners;
};

// A token that a partner takes: of a sequence, after its step `parent` (-1: its first). `path` are the drafted tokens
// since then.
struct Step {
    int sequence, parent, token, depth;
    std::vector<int> path;
};

// What a partner said may follow a node, and what was said before it.
struct Word {
    int partner, place;  // 0: after the root, i + 1: after node i
    double doubt;        // that the best guess before is needed and wrong
    int best_before, best;
    Probabilities before, own;
};

// What the tokens that came say of a partner's step.
struct Credit {
    int partner;
    double doubt;
    double before, own;  // the chances that the token had been given before the step, and by it; 0 off the right path
    int brought;         // tokens that came because the step made the right one the best guess
};

// Judges the steps in which a tree was grown by the tokens that came below its root.
std::vector<Credit> score_steps(const std::vector<Word>& words, const GuessTree& tree, const std::vector<int>& tokens);

// A sequence's tree while it grows.
class GrowingTree {
  public:
    static constexpr int kNoPartner = -1;

    explicit GrowingTree(SequenceRequest given) : request(std::move(given)), token(request.token) {}
    // Grows until a partner has to say what follows the node that was taken last, or the tree is done.
    void begin(const GrowthLimits& limits);
    // Goes on with what the partner that it waits for says, in its step `number`.
    void answer(int number, const Probabilities& found, const GrowthLimits& limits);
    // The step over the node that was taken last.
    Step next_step(int sequence, const PartnerRule& rule) const;
    // The partner's step over the node above the last one.
    int step_above(int partner) const { return place_ == 0 ? -1 : steps_[above(place_)][partner]; }
    int num_taken(int partner) const { return num_taken_[partner]; }

    SequenceRequest request;
    GuessTree tree;
    std::vector<Word> words;  // where somebody had spoken before
    int waits_for = kNoPartner;   // the partner whose next step is one over the node that was taken last
    int token = 0, depth = 0;  // of that node
    int row = 0;               // the partner's, of that step

  private:
    // A node that may be taken; `serial` decides among equally probable ones.
    struct Candidate {
        double path_probability;
        int serial, token, parent;
        double p;
        int depth;
        bool operator<(const Candidate& other) const {
            if (path_probability != other.path_probability)
                return path_probability < other.path_probability;
            return serial > other.serial;
        }
    };

    static constexpr int kNoStep = -2;  // the partner was not asked over a node
    using Steps = std::array<int, kMaxPartners>;
    static constexpr Steps kNoSteps{kNoStep, kNoStep, kNoStep, kNoStep};

    int above(int place) const { return tree.parents[place - 1] + 1; }
    void start_node();
    void ask_from(int partner, const GrowthLimits& limits);
    void grow_on(const GrowthLimits& limits);
    bool may_step(int partner, const PartnerRule& rule) const;
    std::pair<int, double> best() const;
    double doubt(double best) const { return path_probability_ * (1.0 - best); }
    bool take();
    void add(double min_chance);
    void blend(const Probabilities& found, double share);

    double path_probability_ = 1.0;       // of the node that was taken last
    int place_ = 0;                       // its: 0 the root's, 1 the first node's
    std::vector<GuessPlace> places_;      // as the n-grams know them
    std::vector<Steps> steps_{kNoSteps};  // of the partners, by place
    std::array<int, kMaxPartners> num_taken_{};
    std::array<std::vector<Probabilities>, kMaxPartners> by_depth_;  // where guesses depend on nothing else
    Probabilities following_;  // what was said so far of what follows the node
    bool has_spoken_ = false;
    std::vector<Candidate> candidates_;  // a heap
    int serial_ = 0;
};

// Grows a tree of what n-grams say alone.
GuessTree grow_tree(SequenceRequest request, double min_chance);

// Who is asked what may follow nodes.
class Partner {
  public:
    virtual ~Partner() = default;
    // Steps over the nodes for which trees wait for it, partner `self`: once, or as long as there are any.
    virtual void answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) = 0;
};

// What a partner says of a step: logits (count) of tokens, none: the first ids.
struct StepLogits {
    std::span<const float> logits;
    std::span<const std::int64_t> tokens;
};

// Computes the steps of one number, a sequence at most once.
using TakeSteps = std::function<std::vector<StepLogits>(int number, const std::vector<Step>& steps)>;

// A partner whose steps `take` computes. Logits of a greedy sequence are divided by `temperature`.
class SteppingPartner : public Partner {
  public:
    SteppingPartner(TakeSteps take, float temperature) : take_(std::move(take)), temperature_(temperature) {}
    void answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) override;

  private:
    TakeSteps take_;
    float temperature_;
    int number_ = 0;
};

// Grows the trees of some sequences with partners, the cheapest first.
std::vector<GrowingTree> grow(std::vector<SequenceRequest> sequences, const GrowthLimits& limits,
                              const std::vector<Partner*>& partners);

}  // namespace forerun
