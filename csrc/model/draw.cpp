#include "model/draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace forerun {

int draw(const Kernels& kernels, const Perturbation& how, const float* logits, int vocab_size) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const int whole = vocab_size / kTile * kTile;
    float best = -infinity, score = 0.0f;
    int token = -1;
    const auto look = [&](const Perturbation& with, const float* x, int first, int count) {
        for (int i = 0; (i = kernels.find_score(with, x, i, count, best, &score)) < count; ++i) {
            if (!(score < infinity)) return false;
            if (score > best) {
                best = score;
                token = first + i;
            }
        }
        return true;
    };
    if (!look(how, logits, 0, whole)) return -1;
    if (whole == vocab_size) return token;
    float last[kTile];  // a tile beyond the logits may not be read
    std::fill_n(std::copy(logits + whole, logits + vocab_size, last), kTile - (vocab_size - whole),
                -infinity);
    Perturbation rest = how;
    rest.first_token = static_cast<std::uint32_t>(whole);
    return look(rest, last, whole, vocab_size - whole) ? token : -1;
}

}  // namespace forerun
