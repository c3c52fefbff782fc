#include "drafters/computed_network.h"

#include <algorithm>
#include <stdexcept>

namespace forerun {

// The rows are computed before the pass begins, whose lock the one that computes them may need.
void ComputedNetwork::answer(std::vector<GrowingTree>& trees, int self, const GrowthLimits& limits) {
    std::vector<StepRow> rows;
    for (std::size_t i = 0; i < trees.size(); ++i)
        if (const GrowingTree& tree = trees[i]; tree.waits_for == self)
            rows.push_back({static_cast<std::int32_t>(i), tree.num_taken(self), tree.step_above(self), tree.token,
                            tree.depth});
    rows_ = compute_(rows);
    if (rows_.logits.size() != rows.size() * num_ids())
        throw std::invalid_argument("logits of every token are needed for every row");
    if (!rows_.confidences.empty() && rows_.confidences.size() != rows.size())
        throw std::invalid_argument("a confidence is needed for every row, or none");
    DraftNetwork::answer(trees, self, limits);
}

void ComputedNetwork::read_logits(int block, int num_tiles, int first_row, int num_rows, float* out) {
    const int first = block * kHeadBlock, count = std::min(num_tiles * kTile, num_ids() - first);
    const float* from = rows_.logits.data() + static_cast<std::size_t>(first_row) * num_ids() + first;
    for (int row = 0; row < num_rows; ++row, from += num_ids(), out += kHeadBlock) std::copy_n(from, count, out);
}

double ComputedNetwork::confidence(int sequence) const {
    return rows_.confidences.empty() ? 1.0 : rows_.confidences[draft(sequence).row];
}

}  // namespace forerun
