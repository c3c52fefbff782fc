#include "cost_curve.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "drafters/decayed_means.h"

namespace forerun {
namespace {

constexpr double kTableSpread = 0.2;  // how far apart the costs would be that the table is worth to the line
constexpr double kKnown = 2.0;        // measurements of a size after which its cost is known
constexpr double kLeastShare = 0.25;  // of a table's cost, where measurements of other sizes say that it is less
// A first measurement counts as at most so many times what was expected, or as little; later ones are bound closer. What
// is outside makes a size count for less, so that a lasting change is learned.
constexpr double kOutlier = 1.6;

}  // namespace

CostCurve::CostCurve(std::map<int, double> points)
    : points_(std::move(points)), weight_(points_.empty() ? 0.0 : kPriorWeight) {
    size_ = cost_ = points_.empty() ? 0.0 : table(1);
    variance_ = covariance_ = weight_ * kTableSpread * kTableSpread;
    slope_ = points_.empty() ? 0.0 : 1.0;
}

void CostCurve::record(int size, double cost) {
    const auto found = means_.find(size);
    Mean mean = found == means_.end() ? Mean{} : found->second;
    const double limit = 1 + (kOutlier - 1) / std::sqrt(1 + mean.weight);
    const double expected = mean.value != 0 ? mean.value : at(size);
    const bool is_outlier = expected > 0 && !(expected / limit <= cost && cost <= expected * limit);
    if (is_outlier) cost = std::min(std::max(cost, expected / limit), expected * limit);
    mean.value += (cost - mean.value) / (mean.weight + 1);
    mean.weight = is_outlier ? mean.weight / limit : std::min(mean.weight + 1, kDecay / (1 - kDecay));
    means_[size] = mean;
    // Least squares with decaying weights; the slope stays while only one size is seen.
    weight_ = weight_ * kDecay + 1;
    const double said = table(size), step = said - size_, miss = cost - cost_;
    size_ += step / weight_;
    cost_ += miss / weight_;
    variance_ = variance_ * kDecay + step * (said - size_);
    covariance_ = covariance_ * kDecay + step * (cost - cost_);
    if (variance_ > 0.01) slope_ = std::max(0.0, covariance_ / variance_);
}

double CostCurve::at(int size) const {
    const double said = table(size);
    double cost = std::max(said * (points_.empty() ? 0.0 : kLeastShare), cost_ + slope_ * (said - size_));
    if (const auto found = means_.find(size); found != means_.end()) {
        const auto& [weight, mean] = found->second;
        cost = (weight * mean + kPriorWeight * cost) / (weight + kPriorWeight);
    }
    return std::max(0.0, cost);
}

double CostCurve::predict(double size) const {
    const int low = static_cast<int>(size);
    const double share = size - low, cost = at(low);
    return share != 0 ? cost + share * (at(low + 1) - cost) : cost;
}

bool CostCurve::knows(int size) const {
    const auto found = means_.find(size);
    return found != means_.end() && found->second.weight >= kKnown;
}

// The table's cost; without a table the size itself.
double CostCurve::table(int size) const {
    if (points_.empty()) return size;
    auto above = points_.lower_bound(size);
    if (above != points_.end() && above->first == size) return above->second;  // to the last bit: costs that rise stay so
    if (above == points_.begin() || points_.size() == 1) return points_.begin()->second;
    if (above == points_.end()) --above;
    const auto& [low, from] = *std::prev(above);
    return from + static_cast<double>(size - low) / (above->first - low) * (above->second - from);
}

}  // namespace forerun
