#include "drafters/suffix_index.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <unordered_set>

namespace forerun {
namespace {

constexpr int kOffsetBits = 32;
constexpr std::size_t kDocumentTokens = 24;  // DOCUMENT_TOKENS of the oracle

int document_of(Position position) { return static_cast<int>(position >> kOffsetBits); }

std::size_t offset_of(Position position) {
    return static_cast<std::size_t>(position & ((Position{1} << kOffsetBits) - 1));
}

// Room for `more`, an eighth to spare: doubling would hold more than the oracle's bound on bytes.
template <class T>
void make_room(std::vector<T>& items, std::size_t more) {
    const std::size_t needed = items.size() + more;
    if (needed > items.capacity()) items.reserve(needed + needed / 8);
}

// The share of the occurrences that go on so, less where few of them or short ones say so. The
// order of the operations is the oracle's: drafts are equal to the last bit.
double confidence(std::size_t num_followers, std::size_t num_occurrences, int match) {
    const double evidence = static_cast<double>(match) + static_cast<double>(num_occurrences) - 1;
    const double share = static_cast<double>(num_followers) / static_cast<double>(num_occurrences);
    return share * evidence / (evidence + 1);
}

// A node that may be taken; `serial` is its turn among equally frequent ones.
struct Open {
    std::size_t serial;
    int token, parent, depth;
    double confidence;
    std::vector<Position> followers;
};

bool comes_later(const Open& a, const Open& b) {
    if (a.followers.size() != b.followers.size()) return a.followers.size() < b.followers.size();
    return a.serial > b.serial;
}

}  // namespace

struct SuffixIndex::Context {
    Context(std::span<const int> tokens, std::size_t max_depth)
        : tokens(tokens.last(std::min(tokens.size(), max_depth))) {}

    // How many tokens two contexts share.
    std::size_t match(const Context& other) const {
        const auto [differs, _] = std::mismatch(tokens.rbegin(), tokens.rend(),
                                                other.tokens.rbegin(), other.tokens.rend());
        return static_cast<std::size_t>(differs - tokens.rbegin());
    }

    bool operator<(const Context& other) const {
        return std::lexicographical_compare(tokens.rbegin(), tokens.rend(), other.tokens.rbegin(),
                                            other.tokens.rend());
    }

    std::span<const int> tokens;
};

SuffixIndex::SuffixIndex(int max_depth, std::optional<std::size_t> capacity)
    : max_depth_(static_cast<std::size_t>(max_depth)), capacity_(capacity) {
    if (max_depth < 1) throw std::invalid_argument("max_depth must be at least 1");
}

void SuffixIndex::extend(int document, const std::vector<int>& tokens) {
    if (document < 0) throw std::invalid_argument("a document must not be negative");
    if (tokens.empty()) return;
    const auto [entry, is_new] = texts_.try_emplace(document);
    if (is_new) documents_.push_back(document);
    std::vector<int>& text = entry->second;
    const Position base = static_cast<Position>(document) << kOffsetBits;
    // The first token of a document has no context, so nothing could ever find it.
    const Position first = base + static_cast<Position>(std::max<std::size_t>(text.size(), 1));
    make_room(text, tokens.size());
    text.insert(text.end(), tokens.begin(), tokens.end());
    num_tokens_ += tokens.size();
    const Position stop = base + static_cast<Position>(text.size());
    const std::size_t num_new = static_cast<std::size_t>(std::max<Position>(stop - first, 0));
    make_room(order_, num_new);
    if (num_new * 8 > order_.size()) {
        // Newer before older, as single insertions leave them: the sort keeps equals so.
        order_.insert(order_.begin(), num_new, 0);
        std::iota(order_.rend() - static_cast<std::ptrdiff_t>(num_new), order_.rend(), first);
        std::stable_sort(order_.begin(), order_.end(),
                         [&](Position a, Position b) { return context_of(a) < context_of(b); });
    } else {
        for (Position p = first; p < stop; ++p) order_.insert(place(context_of(p)), p);
    }
    if (capacity_ && size() > *capacity_) evict(*capacity_ - *capacity_ / 8);
}

std::vector<Occurrence> SuffixIndex::occurrences(const std::vector<int>& context, int most) const {
    const Context key(context, max_depth_);
    auto after = place(key), before = after;  // `before` is one past the next one there
    const auto match_before = [&] {
        return before == order_.begin() ? 0 : key.match(context_of(before[-1]));
    };
    const auto match_after = [&] {
        return after == order_.end() ? 0 : key.match(context_of(*after));
    };
    std::vector<Occurrence> found;
    std::size_t left = match_before(), right = match_after();
    while (static_cast<int>(found.size()) < most && (left || right)) {
        if (left > right) {
            found.push_back({static_cast<int>(left), *--before});
            left = match_before();
        } else {
            found.push_back({static_cast<int>(right), *after++});
            right = match_after();
        }
    }
    return found;
}

std::optional<Continuation> SuffixIndex::continuation(const std::vector<int>& context,
                                                      const Limits& limits, double score) const {
    std::optional<Continuation> best;
    const std::vector<Occurrence> found = occurrences(context, limits.most);
    std::vector<Position> positions;
    for (std::size_t i = 0; i < found.size(); ++i) {
        const auto [length, position] = found[i];
        positions.push_back(position);
        if (i + 1 < found.size() && found[i + 1].first == length) continue;
        const double granted = limits.factor * length + limits.offset;
        const int budget =
            granted < limits.num_nodes ? static_cast<int>(granted) : limits.num_nodes;
        if (budget <= score || length < limits.min_depth) break;
        std::sort(positions.rbegin(), positions.rend());
        Continuation tree = make_tree(positions, length, budget, limits.min_token_prob);
        if (tree.score > score) {
            score = tree.score;
            best = std::move(tree);
        }
    }
    return best;
}

Continuation SuffixIndex::make_tree(std::vector<Position> occurrences, int match, int num_nodes,
                                    double min_token_prob) const {
    const double num_occurrences = static_cast<double>(occurrences.size());
    const double least = min_token_prob * num_occurrences;
    Continuation tree;
    std::vector<Open> heap;
    std::size_t num_open = 0, total = 0;
    int parent = -1, depth = 0;
    while (static_cast<int>(tree.tokens.size()) < num_nodes) {
        for (auto& [token, positions] : followers(occurrences)) {
            const std::size_t num_next = positions.size();
            if (static_cast<double>(num_next) < least) continue;
            const double sure = confidence(num_next, occurrences.size(), match + depth);
            heap.push_back({num_open++, token, parent, depth, sure, std::move(positions)});
            std::push_heap(heap.begin(), heap.end(), comes_later);
        }
        if (heap.empty()) break;
        std::pop_heap(heap.begin(), heap.end(), comes_later);
        Open node = std::move(heap.back());
        heap.pop_back();
        parent = static_cast<int>(tree.tokens.size());
        tree.tokens.push_back(node.token);
        tree.parents.push_back(node.parent);
        tree.confidence.push_back(node.confidence);
        depth = node.depth + 1;
        occurrences = std::move(node.followers);
        total += occurrences.size();
    }
    tree.score = static_cast<double>(total) / num_occurrences;
    return tree;
}

std::vector<int> SuffixIndex::last_tokens(int document) const {
    const auto found = texts_.find(document);
    if (found == texts_.end()) return {};
    const Context context(found->second, max_depth_);
    return {context.tokens.begin(), context.tokens.end()};
}

std::optional<int> SuffixIndex::token_at(Position position) const {
    const std::vector<int>& text = text_of(position);
    const std::size_t offset = offset_of(position);
    return offset < text.size() ? std::optional(text[offset]) : std::nullopt;
}

std::size_t SuffixIndex::nbytes() const {
    // A node of the hash table and its bucket, its place by age, and the allocator's own words.
    constexpr std::size_t document_nbytes = sizeof(std::vector<int>) + 8 * sizeof(void*);
    std::size_t total = sizeof(*this) + order_.capacity() * sizeof(Position);
    for (const auto& [document, text] : texts_)
        total += document_nbytes + text.capacity() * sizeof(int);
    return total;
}

const std::vector<int>& SuffixIndex::text_of(Position position) const {
    return texts_.find(document_of(position))->second;
}

SuffixIndex::Context SuffixIndex::context_of(Position position) const {
    return Context(std::span(text_of(position)).first(offset_of(position)), max_depth_);
}

std::vector<Position>::const_iterator SuffixIndex::place(const Context& key) const {
    return std::partition_point(order_.begin(), order_.end(),
                                [&](Position p) { return context_of(p) < key; });
}

// In the order in which their tokens are met.
std::vector<SuffixIndex::Followers> SuffixIndex::followers(
    std::span<const Position> positions) const {
    std::vector<Followers> found;
    for (Position position : positions) {
        const std::vector<int>& text = text_of(position);
        const std::size_t offset = offset_of(position);
        if (offset >= text.size()) continue;
        auto same = std::find_if(found.begin(), found.end(),
                                 [&](const Followers& f) { return f.first == text[offset]; });
        if (same == found.end()) same = found.insert(same, {text[offset], {}});
        same->second.push_back(position + 1);
    }
    return found;
}

std::size_t SuffixIndex::size() const { return num_tokens_ + kDocumentTokens * texts_.size(); }

// Drops the oldest documents until at most `size` is left.
void SuffixIndex::evict(std::size_t size) {
    std::unordered_set<int> dropped;
    while (dropped.size() < documents_.size() && this->size() > size) {
        const auto oldest = texts_.find(documents_[dropped.size()]);
        num_tokens_ -= oldest->second.size();
        dropped.insert(oldest->first);
        texts_.erase(oldest);
    }
    documents_.erase(documents_.begin(),
                     documents_.begin() + static_cast<std::ptrdiff_t>(dropped.size()));
    std::erase_if(order_, [&](Position p) { return dropped.contains(document_of(p)); });
    order_.shrink_to_fit();
}

}  // namespace forerun
