// Tables of next tokens: the twins of drafters/base/ngram/token_table.py, which explains them and is their oracle.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/memory.h"

namespace forerun {

// What is known of a context: how often it was seen, and what followed.
struct Counts {
    double total = 0;
    std::vector<std::pair<int, double>> tokens;
};

// The verified rows of a tree: row 0 of `ids`, `logits` (1 + N, k) and `log_sums` (1 + N) follows `tail`, row
// 1 + i node i. Strides are in elements.
struct VerifiedTree {
    std::vector<int> tail, tokens, parents;
    const std::int64_t* ids;
    const float* logits;
    const float* log_sums;
    std::size_t k;
    std::ptrdiff_t id_stride, logit_stride;
};

// The hash of a context grown by one token to the left.
inline std::uint64_t grow_hash(std::uint64_t hash, int token) {
    hash = (hash ^ (static_cast<std::uint64_t>(static_cast<std::int64_t>(token)) + 1)) *
           0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 29);
}

class LiveTable {
  public:
    // `order` at least 1: else std::invalid_argument. At `most_age`, which is above the number of
    // entries, they are numbered anew.
    LiveTable(int order, std::size_t nbytes, std::uint32_t most_age);

    // The target's likeliest tokens after these, with their probabilities.
    void learn(std::span<const int> tokens, std::span<const int> likeliest,
               std::span<const float> probs);
    void learn_trees(std::span<const VerifiedTree> trees);
    // Brings what is known of a context nearer: `find` and `learn` are asked for it soon.
    void prefetch(std::uint64_t hash) const;
    // Adds `weight` times what is known of a context.
    void find(std::uint64_t hash, double weight, Counts& found) const;
    // The bytes of all contexts, those learned longest ago first: for tests.
    std::string entries() const;
    int order() const { return order_; }
    // What it takes at most; memory is touched as contexts are learned.
    std::size_t nbytes() const { return places_.nbytes() + index_.size() * sizeof(index_[0]); }

  private:
    static constexpr int kNumTokens = 6, kWays = 4;
    struct alignas(64) Entry {
        std::uint64_t hash = 0;
        std::uint32_t age = 0;  // 0: never used
        float total = 0;
        std::int32_t tokens[kNumTokens] = {-1, -1, -1, -1, -1, -1};
        float counts[kNumTokens] = {};
    };

    using Place = std::array<Entry, kWays>;  // contexts of which the one learned longest ago gives way

    Entry& entry(std::uint64_t hash);
    void learn(std::uint64_t hash, std::span<const int> likeliest, std::span<const float> probs);
    void number_anew();
    const Place* place(std::uint64_t hash) const;  // null: nothing was learned there
    std::span<Entry> used() const;

    const int order_;
    std::vector<std::uint32_t> index_;  // by hash: 1 + the number of its place; 0: it has none yet
    std::uint32_t num_places_ = 0;
    Buffer places_;  // in the order in which they were needed
    const std::uint32_t most_age_;
    std::uint32_t age_ = 0;
};

// Counts in a file's bytes, which must outlive it.
class FileTable {
  public:
    // Raises std::invalid_argument for offsets that do not fit the data.
    FileTable(std::span<const std::uint32_t> offsets, std::span<const std::uint8_t> data,
              int token_nbytes);
    void find(std::uint64_t hash, double weight, Counts& found) const;
    // Brings first where a context's bucket begins, then the bucket nearer.
    void prefetch_offset(std::uint64_t hash) const;
    void prefetch_bucket(std::uint64_t hash) const;
    std::size_t nbytes() const { return offsets_.size_bytes() + data_.size_bytes(); }

  private:
    std::span<const std::uint32_t> offsets_;
    std::span<const std::uint8_t> data_;
    const std::size_t token_nbytes_;
};

}  // namespace forerun
