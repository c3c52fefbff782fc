// What the controller learns and does for each node of each draft (`engine/controller.py`): costs of sizes, means by
// index, the chances of paths, and the best cut.

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "cost_curve.h"
#include "drafters/decayed_means.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

constexpr double kConfidenceWeight = 2.0;  // cases that a stated confidence weighs as much as
constexpr int kLevels = 16;                // of confidence, each as wide as a factor of two in the odds

using Values = std::vector<double>;
using Tokens = std::vector<int>;
using Confidence = std::optional<Values>;

// The number of values that bring most together, less what so many cost; and how much that is.
class BestPrefix {
  public:
    // `cost` is that of none.
    explicit BestPrefix(double cost) : net(-cost) {}
    // Takes the next value; with it, all so far cost `cost`.
    void add(double value, double cost) {
        ++count_;
        total_ += value;
        if (total_ - cost > net) {
            net = total_ - cost;
            best = count_;
        }
    }
    std::size_t best = 0;
    double net;

  private:
    std::size_t count_ = 0;
    double total_ = 0.0;
};

// P(node accepted | parent accepted), from every draft, verified or not: by confidence, by index where there is none.
class AcceptanceRates {
  public:
    Values paths(const Tokens& parents, const Confidence& confidence) const {
        Values products;
        products.reserve(parents.size());
        for (std::size_t i = 0; i < parents.size(); ++i) {
            const double said = confidence ? confidence->at(i) : 0.5;
            const double rate = confidence ? by_confidence_.given(level(said), said, kConfidenceWeight)
                                           : by_index_.given(i, said, kConfidenceWeight);
            products.push_back(parents[i] < 0 ? rate : rate * products.at(static_cast<std::size_t>(parents[i])));
        }
        return products;
    }

    void record(const Tokens& tokens, const Tokens& parents, const Confidence& confidence, const Tokens& emitted) {
        constexpr std::size_t off = std::numeric_limits<std::size_t>::max();
        std::vector<std::size_t> depths(tokens.size(), off);  // of nodes that came true
        for (std::size_t i = 0; i < tokens.size(); ++i) {
            const std::size_t depth = parents.at(i) < 0 ? 0 : depths.at(static_cast<std::size_t>(parents[i]));
            if (depth >= emitted.size()) continue;
            const bool is_right = tokens[i] == emitted[depth];
            if (is_right) depths[i] = depth + 1;
            if (confidence)
                by_confidence_.record(level(confidence->at(i)), is_right);
            else
                by_index_.record(i, is_right);
        }
    }

  private:
    static std::size_t level(double confidence) {
        static const auto ends = [] {
            std::array<double, kLevels> found{};
            for (int i = 0; i < kLevels; ++i) found[i] = 1 / (1 + std::pow(2.0, kLevels / 2 - 0.5 - i));
            return found;
        }();
        return static_cast<std::size_t>(std::upper_bound(ends.begin(), ends.end(), confidence) - ends.begin());
    }

    DecayedMeans by_confidence_, by_index_;
};

// How many nodes of each draft to verify, and what a row of them costs in tokens. Nodes are taken as their paths' chances
// fall, each after those before it; a pass of n rows costs price * (passes[n] + row_cost * n).
std::pair<std::vector<int>, double> best_cut(const std::vector<Values>& paths, const CostCurve& passes, int num_seqs,
                                             double row_cost, double price) {
    struct Node {
        double least, chance;
        std::size_t draft;
    };
    std::vector<Node> nodes;
    for (std::size_t i = 0; i < paths.size(); ++i) {
        double least = std::numeric_limits<double>::infinity();
        for (const double chance : paths[i]) {
            least = std::min(least, chance);
            nodes.push_back({least, chance, i});
        }
    }
    std::stable_sort(nodes.begin(), nodes.end(), [](const Node& a, const Node& b) { return a.least > b.least; });
    const auto cost = [&](std::size_t num_nodes) {
        const int rows = num_seqs + static_cast<int>(num_nodes);
        return price * (passes.at(rows) + row_cost * rows);
    };
    BestPrefix found(cost(0));
    for (std::size_t k = 0; k < nodes.size(); ++k) found.add(nodes[k].chance, cost(k + 1));
    std::vector<int> kept(paths.size());
    for (std::size_t k = 0; k < found.best; ++k) ++kept[nodes[k].draft];
    const double row = found.best ? (cost(found.best) - cost(0)) / static_cast<double>(found.best) : 0.0;
    return {std::move(kept), std::max(0.0, row)};
}

}  // namespace

void bind_controller(nb::module_& m) {
    nb::class_<DecayedMeans>(m, "DecayedMeans", "Means by index; the older a case is, the less it counts.")
        .def(nb::init<>())
        .def("__len__", &DecayedMeans::size)
        .def(
            "record",
            [](DecayedMeans& self, const Values& values, double less, std::size_t count) {
                for (std::size_t i = 0; i < values.size(); ++i) self.record(i, values[i] - less);
                for (std::size_t i = values.size(); i < count; ++i) self.record(i, 0.0);
            },
            "values"_a, "less"_a = 0.0, "count"_a = 0,
            "Add a case of each of the first means: values, each less so much, and zeros up to `count`.")
        .def(
            "given",
            [](const DecayedMeans& self, Values priors, double weight) {
                for (std::size_t i = 0; i < priors.size(); ++i) priors[i] = self.given(i, priors[i], weight);
                return priors;
            },
            "priors"_a, "weight"_a, "Return the first means, where each prior counts as `weight` cases.")
        .def(
            "best_prefix",
            [](const DecayedMeans& self, const Values& priors, double weight, const CostCurve& costs, double price) {
                BestPrefix found(0.0);
                for (std::size_t i = 0; i < priors.size(); ++i)
                    found.add(self.given(i, priors[i], weight), price * costs.at(static_cast<int>(i) + 1));
                return std::pair(found.best, found.net);
            },
            "priors"_a, "weight"_a, "costs"_a, "price"_a,
            "Return how many means, added up, bring most less the cost of so many; and how much.");

    nb::class_<CostCurve>(m, "CostCurve", "What a step costs by its size: a table, whose place measurements take.")
        .def(nb::init<std::map<int, double>>(), "points"_a = std::map<int, double>{})
        .def_prop_ro("points", &CostCurve::points)
        .def("record", &CostCurve::record, "size"_a, "cost"_a, "Learn one measured cost of a size.")
        .def("predict", &CostCurve::predict, "size"_a, "Return the cost of a size; 0 if nothing at all is known.")
        .def("v", &CostCurve::v, "rows"_a, "Return the cost of so many rows over that of one.")
        .def("knows", &CostCurve::knows, "size"_a, "Return whether it was measured, and the last measurements agree.");

    nb::class_<AcceptanceRates>(m, "AcceptanceRates", "How often nodes are accepted whose parents are.")
        .def(nb::init<>())
        .def("paths", &AcceptanceRates::paths, "parents"_a, "confidence"_a.none(),
             "Return P(node accepted) of every node: the product of the rates on the path to it.")
        .def("record", &AcceptanceRates::record, "tokens"_a, "parents"_a, "confidence"_a.none(), "emitted"_a,
             "Compare a draft, cut or not, with the tokens that came: all nodes whose parents came.");

    m.def("best_cut", &best_cut, "paths"_a, "passes"_a, "num_seqs"_a, "row_cost"_a, "price"_a,
          "Return how many nodes of each draft to verify, by their path probabilities and what passes cost; and what a "
          "row of these costs.");
}

}  // namespace forerun
