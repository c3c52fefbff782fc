// Medusa: heads on the target's last state.

#include <algorithm>
#include <stdexcept>

#include "drafters/draft_network.h"

namespace forerun {

void MedusaNetwork::check() {
    const int width = target_.shape().hidden_size;
    blocks_.clear();
    int num_heads = 1;
    for (int head = 0; head < num_heads_; ++head) {
        for (int layer = 0; layer < num_layers_; ++layer) {
            const std::string name = std::to_string(head) + "." + std::to_string(layer);
            const Linear& linear = matrix("block." + name, width, width);
            blocks_.push_back({&linear, norm("bias." + name, width).weight});
        }
        if (has("head." + std::to_string(head))) num_heads = head + 1;
    }
    check_heads(width, num_heads);
}

void MedusaNetwork::begin(std::span<int>) {
    check_states();
    if (blocks_.empty()) check();
}

void MedusaNetwork::lay_out(Scratch& scratch) {
    const int rows = num_sequences(), width = target_.shape().hidden_size;
    rows_ = scratch.take_rows(rows, width);
    head_rows_ = scratch.take_rows(rows, width);
    out_ = scratch.take<float>(static_cast<std::size_t>(rows) * width);
}

void MedusaNetwork::plan_cell(std::vector<int>& phases) {
    for (int layer = 0; layer < num_layers_; ++layer)
        phases.insert(phases.end(), {8 * pool_.size(), row_pieces(num_sequences())});
}

void MedusaNetwork::run_cell(Worker& worker) {
    for (int layer = 0; layer < num_layers_; ++layer)
        worker.each_and_rows([&](int piece) { project(piece, layer); }, num_sequences_,
                             [&](int sequence) { finish(sequence, layer); });
}

void MedusaNetwork::prepare(int sequence) {
    const int row = draft(sequence).row;
    float* x = rows_.x + static_cast<std::size_t>(row) * rows_.width;
    std::copy_n(seeds_[sequence].state, rows_.width, x);
    if (!block(row, 0).linear->is_float()) kernels_.quantize(x, rows_, row, 0, rows_.width);
}

void MedusaNetwork::project(int piece, int layer) {
    const int count = num_rows();
    const std::size_t width = rows_.width;
    for (int row = 0; row < count; ++row) {
        const Linear& linear = *block(row, layer).linear;
        const Part part(linear.num_tiles(), piece, 8 * pool_.size());
        kernels_.linear(linear, part.first, part.stop - part.first, rows_, row, 1,
                        {out_ + row * width + part.first * kTile, width});
    }
}

void MedusaNetwork::finish(int sequence, int layer) {
    if (!is_active(sequence)) return;
    const int row = draft(sequence).row, width = rows_.width;
    float* x = rows_.x + static_cast<std::size_t>(row) * width;
    float* out = out_ + static_cast<std::size_t>(row) * width;
    for (int i = 0; i < width; ++i) out[i] += block(row, layer).bias[i];
    kernels_.activate(Activation::Silu, out, nullptr, width, out);
    for (int i = 0; i < width; ++i) x[i] += out[i];
    if (layer + 1 == num_layers_)
        give_head(row, x);
    else if (!block(row, layer + 1).linear->is_float())
        kernels_.quantize(x, rows_, row, 0, width);
}

}  // namespace forerun
