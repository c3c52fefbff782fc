// How a tree of guesses sees the sampler's noise: the same numbers that the target's logits will meet.
//
// A request that samples at temperature T takes argmax (l / T + g). Of guesses with probabilities p and noise g, the
// target's choice is about
//
//     softmax((log p + T g) / s)
//
// where what is left to other tokens counts as one more, of the mean noise. s = 1 would be right if p were the target's
// distribution; it differs, most in its tail, so the noise decides less than it says (arXiv 2408.07978, 2506.05632).

#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "model/types.h"

namespace forerun {

inline constexpr double kSpread = 1.25;  // s

using Probabilities = std::vector<std::pair<int, double>>;  // tokens, each once

// The sampler's noise below a text's last token: what `core/random.py` keeps of a sequence, the position of its
// next token, the request's temperature and filters, and s.
struct TreeNoise {
    std::uint64_t seed = 0, stream = 0, position = 0;
    double temperature = 1.0, top_p = 1.0, min_p = 0.0;
    std::size_t top_k = 0;  // 0: all
    double spread = kSpread;

    std::uint64_t key(int depth) const;
    // How logits of the first tokens at a depth become scores.
    Perturbation perturbation(int depth) const {
        return {.key = key(depth), .factor = static_cast<float>(1.0 / temperature)};
    }
    // The probabilities of tokens at a depth to be the sampler's choice, given its noise.
    void see(int depth, Probabilities& next) const;

  private:
    void filter(Probabilities& next) const;
};

using Noises = std::vector<std::optional<TreeNoise>>;  // of each text; empty: all requests are greedy

inline std::optional<TreeNoise> noise_of(const Noises& noises, std::size_t i) {
    return noises.empty() ? std::nullopt : noises[i];
}

}  // namespace forerun
