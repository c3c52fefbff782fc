// The suffix index: tests/oracles/suffix_index.py explains it and is its reference.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

namespace forerun {

using Position = std::int64_t;  // document << 32 | offset

using Occurrence = std::pair<int, Position>;  // tokens that match, place

// What a tree may cost, and how it is chosen: the arguments of the same names in Python.
struct Limits {
    int most, num_nodes;
    double factor, offset, min_token_prob;
    int min_depth;
};

struct Continuation {
    std::vector<int> tokens, parents;
    std::vector<double> confidence;
    double score = 0;
};

class SuffixIndex {
  public:
    // `max_depth` at least 1, documents not negative: else std::invalid_argument.
    SuffixIndex(int max_depth, std::optional<std::size_t> capacity);

    void extend(int document, const std::vector<int>& tokens);
    std::vector<Occurrence> occurrences(const std::vector<int>& context, int most) const;
    std::optional<Continuation> continuation(const std::vector<int>& context, const Limits& limits,
                                             double score) const;
    // The last tokens of a document, at most max_depth; none of an unknown one.
    std::vector<int> last_tokens(int document) const;
    // The token at a place; none at the end of its document.
    std::optional<int> token_at(Position position) const;
    std::size_t num_tokens() const { return num_tokens_; }
    std::size_t nbytes() const;

  private:
    struct Context;  // tokens before a place, the nearest first
    // A token, and the positions behind those that it stands at.
    using Followers = std::pair<int, std::vector<Position>>;

    const std::vector<int>& text_of(Position position) const;
    Context context_of(Position position) const;
    std::vector<Position>::const_iterator place(const Context& key) const;
    std::vector<Followers> followers(std::span<const Position> positions) const;
    Continuation make_tree(std::vector<Position> occurrences, int match, int num_nodes,
                           double min_token_prob) const;
    std::size_t size() const;
    void evict(std::size_t size);

    const std::size_t max_depth_;
    const std::optional<std::size_t> capacity_;
    std::size_t num_tokens_ = 0;
    std::unordered_map<int, std::vector<int>> texts_;
    std::vector<int> documents_;  // the oldest first
    std::vector<Position> order_;
};

}  // namespace forerun
