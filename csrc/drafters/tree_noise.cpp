#include "drafters/tree_noise.h"

#include <algorithm>
#include <cmath>

#include "isa/isa.h"

namespace forerun {
namespace {

constexpr double kMeanNoise = 0.5772156649015329;

std::uint64_t mix64(std::uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

double left(const Probabilities& probabilities) {
    double rest = 1.0;
    for (const auto& [token, p] : probabilities) rest -= p;
    return std::max(rest, 1e-9);
}

}  // namespace

std::uint64_t TreeNoise::key(int depth) const {
    const std::uint64_t place = position + static_cast<std::uint64_t>(depth) + 1;
    return mix64(mix64(seed + 0x9E3779B97F4A7C15u * place) + stream);
}

// Only tokens that the request's filters are likely to leave, as shares of all that they leave.
void TreeNoise::filter(Probabilities& next) const {
    if (top_p == 1.0 && min_p == 0.0 && top_k == 0) return;
    Probabilities ranked = next;
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    const double least = min_p * ranked[0].second;
    const std::size_t most = top_k != 0 ? top_k : ranked.size();
    double kept = 0.0;
    std::size_t count = 0;
    for (; count < std::min(most, ranked.size()); ++count) {
        const double p = ranked[count].second;
        if (kept >= top_p || p < least) break;
        kept += p;
    }
    if (count == next.size()) kept = std::max(kept, top_p);  // the filters may leave more
    next.assign(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count));
    for (auto& [token, p] : next) p /= kept;
}

void TreeNoise::see(int depth, Probabilities& next) const {
    if (next.empty()) return;
    filter(next);
    std::vector<std::int32_t> tokens;
    for (const auto& [token, p] : next) tokens.push_back(token);
    std::vector<float> noise(tokens.size());
    const int count = static_cast<int>(tokens.size());
    kernels_for("auto").noise(key(depth), tokens.data(), count, noise.data());
    const auto weight = [&](double p, double g) {
        return std::exp((std::log(p) + temperature * g) / spread);
    };
    double total = weight(left(next), kMeanNoise);
    for (int i = 0; i < count; ++i) total += next[i].second = weight(next[i].second, noise[i]);
    for (auto& [token, p] : next) p /= total;
}

}  // namespace forerun
