#pragma once
// What a step costs by its size: from a table, from measurements while requests run, or both. The older count less.
//
// A size is the rows of a pass, or the nodes a drafter returned. `v(k)` is the cost of a pass of k rows over that of one
// row. Costs learned at run time are relative: the caller that records them divides by the machine's speed of the moment,
// so that a slow second does not look like a large pass. Nothing here reads a clock.
//
// Of a mixture of experts a pass reads each expert that some row chose, once: a size's cost is the mean over what the rows
// of such passes chose recently; siblings and repeated text choose fewer than unrelated rows.

#include <map>
#include <vector>

namespace forerun {

// A table of points, whose place measurements take as they come.
//
// Between points costs lie on straight lines, beyond the last the last line goes on. Sizes that were measured have decayed
// means of their own; a line through all measurements, against what the table says of their sizes, stands in for the
// others. Without a table unknown is cheap: the line is against the sizes, and flat until two different ones were seen.
class CostCurve {
  public:
    // `points` are costs of an earlier run, by their sizes.
    explicit CostCurve(std::map<int, double> points);

    // Learns one measured cost of a size; later ones count for more.
    void record(int size, double cost);
    // The cost of a size, between two of them its share; 0 if nothing at all is known.
    double predict(double size) const;
    // The cost of so many rows over that of one.
    double v(double rows) const { return predict(rows) / predict(1); }
    // The cost of a whole size.
    double at(int size) const;

    const std::map<int, double>& points() const { return points_; }
    // Whether a size was measured, and its last measurements agree.
    bool knows(int size) const;

  private:
    struct Mean {
        double weight = 0.0, value = 0.0;
    };
    double table(int size) const;

    std::map<int, double> points_;
    std::map<int, Mean> means_;
    // The line: cost against the table's. A table is as good as some measurements on the line y = x.
    double weight_, size_, cost_, variance_, covariance_, slope_;
};

}  // namespace forerun
