#include "drafters/token_table.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>

namespace forerun {
namespace {

constexpr float kFade = 0.7f;  // FADE of the oracle

// Which of so many places a hash belongs to.
std::size_t place_of(std::uint64_t hash, std::size_t num_places) {
    return static_cast<std::size_t>((hash >> 32) * num_places >> 32);
}

void add(Counts& counts, int token, double count) {
    for (auto& [known, sum] : counts.tokens) {
        if (known == token) {
            sum += count;
            return;
        }
    }
    counts.tokens.push_back({token, count});
}

}  // namespace

LiveTable::LiveTable(int order, std::size_t nbytes, std::uint32_t most_age)
    : order_(order),
      index_(std::max<std::size_t>(1, nbytes / (sizeof(Place) + sizeof(index_[0])))),
      places_(index_.size() * sizeof(Place)),
      most_age_(most_age) {
    static_assert(sizeof(Entry) == 64);
    if (order < 1) throw std::invalid_argument("order must be at least 1");
    if (most_age <= index_.size() * kWays) throw std::invalid_argument("most_age is too low");
}

void LiveTable::learn(std::span<const int> tokens, std::span<const int> likeliest,
                      std::span<const float> probs) {
    std::uint64_t hash = 0;
    const std::size_t most = std::min(tokens.size(), static_cast<std::size_t>(order_));
    for (std::size_t n = 1; n <= most; ++n) {
        hash = grow_hash(hash, tokens[tokens.size() - n]);
        learn(hash, likeliest, probs);
    }
}

// A cache miss is expensive: all contexts are prefetched before the first is learned.
void LiveTable::learn_trees(std::span<const VerifiedTree> trees) {
    std::vector<std::uint64_t> hashes;  // of all rows, the shortest context of each first
    std::vector<std::size_t> num_hashes;
    std::vector<std::vector<int>> tails;
    for (const VerifiedTree& tree : trees) {
        tails.assign(1, tree.tail);
        for (std::size_t row = 0; row <= tree.tokens.size(); ++row) {
            if (row > 0) {
                tails.push_back(tails[static_cast<std::size_t>(tree.parents[row - 1] + 1)]);
                tails.back().push_back(tree.tokens[row - 1]);
            }
            const std::vector<int>& tail = tails[row];
            num_hashes.push_back(std::min(tail.size(), static_cast<std::size_t>(order_)));
            std::uint64_t hash = 0;
            for (std::size_t n = 1; n <= num_hashes.back(); ++n) {
                hashes.push_back(hash = grow_hash(hash, tail[tail.size() - n]));
                prefetch(hash);
            }
        }
    }
    std::vector<int> likeliest;
    std::vector<float> probs;
    auto hash = hashes.begin();
    auto num = num_hashes.begin();
    for (const VerifiedTree& tree : trees) {
        likeliest.resize(tree.k);
        probs.resize(tree.k);
        for (std::size_t row = 0; row <= tree.tokens.size(); ++row, ++num) {
            const std::int64_t* ids = tree.ids + static_cast<std::ptrdiff_t>(row) * tree.id_stride;
            const float* logits = tree.logits + static_cast<std::ptrdiff_t>(row) * tree.logit_stride;
            for (std::size_t i = 0; i < tree.k; ++i) {
                likeliest[i] = static_cast<int>(ids[i]);
                const double above = static_cast<double>(logits[i]) - tree.log_sums[row];
                probs[i] =
                    std::isnan(above) ? 0.0f : static_cast<float>(std::exp(std::min(above, 0.0)));
            }
            for (std::size_t n = 0; n < *num; ++n) learn(*hash++, likeliest, probs);
        }
    }
}

void LiveTable::learn(std::uint64_t hash, std::span<const int> likeliest,
                      std::span<const float> probs) {
    Entry& known = entry(hash);
    known.total = known.total * kFade + 1.0f;
    for (float& count : known.counts) count *= kFade;
    for (std::size_t i = 0; i < likeliest.size(); ++i) {
        const auto same = std::find(known.tokens, std::end(known.tokens), likeliest[i]);
        if (same != std::end(known.tokens)) {
            known.counts[same - known.tokens] += probs[i];
            continue;
        }
        const auto blank = std::find(known.tokens, std::end(known.tokens), -1);
        auto at = blank - known.tokens;
        if (blank == std::end(known.tokens)) {
            at = std::min_element(known.counts, std::end(known.counts)) - known.counts;
            if (known.counts[at] >= probs[i]) continue;
        }
        known.tokens[at] = likeliest[i];
        known.counts[at] = probs[i];
    }
}

void LiveTable::prefetch(std::uint64_t hash) const {
    if (const Place* known = place(hash))
        for (const Entry& e : *known) __builtin_prefetch(&e);
}

void LiveTable::find(std::uint64_t hash, double weight, Counts& found) const {
    const Place* const known = place(hash);
    if (!known) return;
    for (const Entry& e : *known) {
        if (e.hash != hash || e.age == 0) continue;
        found.total += weight * static_cast<double>(e.total);
        for (int i = 0; i < kNumTokens && e.tokens[i] != -1; ++i)
            add(found, e.tokens[i], weight * static_cast<double>(e.counts[i]));
        return;
    }
}

std::string LiveTable::entries() const {
    std::vector<const Entry*> found;
    for (const Entry& e : used())
        if (e.age != 0) found.push_back(&e);
    std::sort(found.begin(), found.end(),
              [](const Entry* a, const Entry* b) { return a->age < b->age; });
    std::string bytes(found.size() * sizeof(Entry), '\0');
    for (std::size_t i = 0; i < found.size(); ++i)
        std::memcpy(&bytes[i * sizeof(Entry)], found[i], sizeof(Entry));
    return bytes;
}

// The same order of ages from 1 on.
void LiveTable::number_anew() {
    std::vector<Entry*> known;
    for (Entry& e : used())
        if (e.age != 0) known.push_back(&e);
    std::sort(known.begin(), known.end(), [](Entry* a, Entry* b) { return a->age < b->age; });
    age_ = 0;
    for (Entry* e : known) e->age = ++age_;
}

const LiveTable::Place* LiveTable::place(std::uint64_t hash) const {
    const std::uint32_t number = index_[place_of(hash, index_.size())];
    return number == 0 ? nullptr : places_.as<Place>() + number - 1;
}

std::span<LiveTable::Entry> LiveTable::used() const {
    return {places_.as<Entry>(), std::size_t{num_places_} * kWays};
}

// The context's, or the one learned longest ago of those in its place, emptied.
LiveTable::Entry& LiveTable::entry(std::uint64_t hash) {
    if (age_ == most_age_) number_anew();
    ++age_;
    std::uint32_t& number = index_[place_of(hash, index_.size())];
    if (number == 0) new (places_.as<Place>() + (number = ++num_places_) - 1) Place{};
    Place& known = places_.as<Place>()[number - 1];
    Entry* oldest = known.data();
    for (Entry& e : known) {
        if (e.hash == hash && e.age != 0) {
            e.age = age_;
            return e;
        }
        if (e.age < oldest->age) oldest = &e;
    }
    *oldest = Entry{};
    oldest->hash = hash;
    oldest->age = age_;
    return *oldest;
}

FileTable::FileTable(std::span<const std::uint32_t> offsets, std::span<const std::uint8_t> data,
                     int token_nbytes)
    : offsets_(offsets), data_(data), token_nbytes_(static_cast<std::size_t>(token_nbytes)) {
    if (token_nbytes != 2 && token_nbytes != 3)
        throw std::invalid_argument("token_nbytes must be 2 or 3");
    if (offsets.size() < 2 || offsets.back() != data.size() ||
        !std::is_sorted(offsets.begin(), offsets.end()))
        throw std::invalid_argument("the offsets do not fit the data");
}

void FileTable::prefetch_offset(std::uint64_t hash) const {
    __builtin_prefetch(&offsets_[place_of(hash, offsets_.size() - 1)]);
}

void FileTable::prefetch_bucket(std::uint64_t hash) const {
    __builtin_prefetch(data_.data() + offsets_[place_of(hash, offsets_.size() - 1)]);
}

void FileTable::find(std::uint64_t hash, double weight, Counts& found) const {
    const std::size_t bucket = place_of(hash, offsets_.size() - 1), width = token_nbytes_ + 1;
    const std::uint8_t* at = data_.data() + offsets_[bucket];
    const std::uint8_t* const stop = data_.data() + offsets_[bucket + 1];
    while (stop - at >= 4) {
        const std::uint64_t mark = at[0] | static_cast<std::uint64_t>(at[1]) << 8;
        const double total =
            static_cast<double>((16 + (at[2] & 15)) << (at[2] >> 4)) / 16;
        const std::size_t num = at[3];
        at += 4;
        if (static_cast<std::size_t>(stop - at) < num * width) return;
        if (mark == (hash & 0xFFFF)) {
            found.total += weight * total;
            for (std::size_t i = 0; i < num; ++i, at += width) {
                std::uint32_t token = 0;
                for (std::size_t b = 0; b < token_nbytes_; ++b)
                    token |= static_cast<std::uint32_t>(at[b]) << (8 * b);
                add(found, static_cast<int>(token), weight * (total * at[token_nbytes_] / 255));
            }
            return;
        }
        at += num * width;
    }
}

}  // namespace forerun
