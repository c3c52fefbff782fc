#pragma once
// Means in which the older a case is, the less it counts.

#include <cstddef>
#include <vector>

namespace forerun {

constexpr double kDecay = 0.98;       // what a case counts for after the next one (`core.costs.DECAY`)
constexpr double kPriorWeight = 4.0;  // cases that what is said beforehand weighs as much as (`core.costs.PRIOR_WEIGHT`)

// A mean in which each case weighs `kDecay` times what the next one does.
class DecayedMean {
  public:
    void record(double value) {
        weight_ = weight_ * kDecay + 1;
        total_ = total_ * kDecay + value;
    }
    // The mean, where `prior` counts as `weight` cases.
    double given(double prior, double weight) const { return (total_ + weight * prior) / (weight_ + weight); }

  private:
    double weight_ = 0.0, total_ = 0.0;
};

// Means by index.
class DecayedMeans {
  public:
    void record(std::size_t index, double value) {
        if (means_.size() <= index) means_.resize(index + 1);
        means_[index].record(value);
    }
    double given(std::size_t index, double prior, double weight) const {
        return index < means_.size() ? means_[index].given(prior, weight) : prior;
    }
    std::size_t size() const { return means_.size(); }

  private:
    std::vector<DecayedMean> means_;
};

}  // namespace forerun
