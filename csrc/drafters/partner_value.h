#pragma once
// What a partner of a tree is worth, learned from the tokens that came: its share, and what its steps bring.
//
// Share. A token's chance is (1 - w) p + w q, where others gave it p before and the partner gives it q. The w that makes
// the tokens that came likeliest is the mean of w q / ((1 - w) p + w q) over them: the weight of a mixture, by
// expectation and maximisation, with older tokens counting less.
//
// Doubt. A step is taken where the best guess so far is needed and wrong with some probability, the doubt d. A step that
// makes the right token the best guess brings that one and those that the tree has below it, up to where another step
// did the same. What steps bring grows with the square of the doubt (over 868 steps of a model 0.10, 0.27, 0.67 and 0.81
// tokens at a d of 0.25, 0.45, 0.65 and 0.85): it is gain d^2, and a step pays where that is more than it costs.

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "drafters/decayed_means.h"
#include "drafters/growth.h"

namespace forerun {

class PartnerValue {
  public:
    // Asked from this doubt on, however little its steps have brought: else nothing more would be learned.
    static constexpr double kMostDoubt = 0.7;

    // `gain`: tokens that a step is known beforehand to bring for each doubt squared.
    PartnerValue(double share, double gain)
        : first_share_(share), first_gain_(gain), share_(share), brought_(kFirstSquares * gain) {}

    // Of what it says in a probability that others gave before it.
    double share() const { return share_; }

    // The doubt from which its steps pay, `least` or more. `cost` is that of a step in tokens; none: as much as a step at
    // the least doubt is known to bring beforehand.
    double doubt(double least, std::optional<double> cost) const {
        const double gain = brought_ / squares_, paid = cost.value_or(first_gain_ * least * least);
        const double paying = gain > 0 ? std::sqrt(paid / gain) : 1.0;
        return std::max(least, std::min(paying, kMostDoubt));
    }

    // Takes its steps of one draft.
    void learn(const std::vector<Credit>& steps) {
        double squares = 0.0, brought = 0.0;
        for (const Credit& step : steps) {
            const double likely = (1 - share_) * step.before + share_ * step.own;
            if (likely > 0) shares_.record(share_ * step.own / likely);
            squares += step.doubt * step.doubt;
            brought += step.brought;
        }
        share_ = shares_.given(first_share_, kPriorWeight);
        squares_ = squares_ * kMemory + squares;
        brought_ = brought_ * kMemory + brought;
    }

  private:
    static constexpr double kFirstSquares = 8.0;  // the squares of doubts that `gain` weighs as much as
    // What a draft counts for after the next one: a step seldom brings a token, so many tell what steps bring.
    static constexpr double kMemory = 0.995;

    double first_share_, first_gain_, share_;
    DecayedMean shares_;
    double squares_ = kFirstSquares, brought_;
};

}  // namespace forerun
