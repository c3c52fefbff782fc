#include "model/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace forerun {

void find_largest(const Kernels& kernels, const Perturbation& how, const float* logits,
                  int vocab_size, int k, Scored* found) {
    std::fill_n(found, k, kNoScore);
    const int whole = vocab_size / kTile * kTile;
    float score = 0.0f;
    const auto look = [&](const Perturbation& with, const float* x, int first, int count) {
        const auto find = [&](int i) {
            const float limit = std::max(found[k - 1].value, std::numeric_limits<float>::lowest());
            return kernels.find_score(with, x, i, count, limit, &score);
        };
        for (int i = find(0); i < count; i = find(i + 1)) insert({score, first + i}, found, k);
    };
    look(how, logits, 0, whole);
    if (whole == vocab_size) return;
    float last[kTile];  // a tile beyond the logits may not be read
    std::int32_t ids[kTile] = {};
    std::fill_n(std::copy(logits + whole, logits + vocab_size, last), kTile - (vocab_size - whole),
                kNoScore.value);
    Perturbation rest = how;
    if (how.ids) {
        std::copy(how.ids + whole, how.ids + vocab_size, ids);
        rest.ids = ids;
    } else {
        rest.first_token = static_cast<std::uint32_t>(whole);
    }
    look(rest, last, whole, vocab_size - whole);
}

int draw(const Kernels& kernels, const Perturbation& how, const float* logits, int vocab_size) {
    Scored found;
    find_largest(kernels, how, logits, vocab_size, 1, &found);
    return std::isfinite(found.value) ? found.id : -1;
}

}  // namespace forerun
