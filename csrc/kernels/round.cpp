#include "kernels/round.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/half.h"

namespace forerun {

namespace {

constexpr int kLanes = 8;  // partial results, which compilers make vectors of

template <class Pick>
float reduce(const float* values, const Pick& pick) {
    float best[kLanes];
    std::copy_n(values, kLanes, best);
    for (int i = kLanes; i < kGroup; i += kLanes)
        for (int lane = 0; lane < kLanes; ++lane) best[lane] = pick(best[lane], values[i + lane]);
    for (int lane = 1; lane < kLanes; ++lane) best[0] = pick(best[0], best[lane]);
    return best[0];
}

// A step so small that its inverse is none stands for zeros.
float inverse_of(float step) {
    const float inverse = 1.0f / step;
    return std::isfinite(inverse) ? inverse : 0.0f;
}

void put_half(std::uint8_t* at, float value) {
    const std::uint16_t half = float_to_half(value);
    std::memcpy(at, &half, 2);
}

// Halves are rounded away from zero.
void round_q8_0(const float* values, std::uint8_t* block) {
    float sizes[kGroup];
    for (int i = 0; i < kGroup; ++i) sizes[i] = std::fabs(values[i]);
    const float step = reduce(sizes, [](float a, float b) { return b > a ? b : a; }) / 127.0f;
    const float inverse = inverse_of(step);
    put_half(block, step);
    std::int8_t codes[kGroup];
    for (int i = 0; i < kGroup; ++i) {
        const float size = std::fabs(values[i] * inverse);
        const int whole = static_cast<int>(size);
        const int code = whole + (2.0f * (size - static_cast<float>(whole)) >= 1.0f);
        codes[i] = static_cast<std::int8_t>(values[i] < 0.0f ? -code : code);
    }
    std::memcpy(block + 2, codes, kGroup);
}

void round_q4_1(const float* values, std::uint8_t* block) {
    const float low = reduce(values, [](float a, float b) { return b < a ? b : a; }),
                high = reduce(values, [](float a, float b) { return b > a ? b : a; });
    const float step = (high - low) / 15.0f, inverse = inverse_of(step);
    put_half(block, step);
    put_half(block + 2, low);
    std::uint8_t codes[kGroup];
    for (int i = 0; i < kGroup; ++i) {
        const float code = (values[i] - low) * inverse + 0.5f;
        codes[i] = static_cast<std::uint8_t>(static_cast<int>(code < 15.0f ? code : 15.0f));
    }
    for (int i = 0; i < kGroup / 2; ++i)
        block[4 + i] = static_cast<std::uint8_t>(codes[i] | codes[i + kGroup / 2] << 4);
}

bool are_finite(const float* values) {
    std::uint32_t most = 0;
    for (int i = 0; i < kGroup; ++i) most = std::max(most, word_of_float(values[i]) & 0x7FFFFFFFu);
    return most < 0x7F800000u;
}

}  // namespace

void round_blocks(const WeightFormat& format, const float* values, std::size_t count, std::uint8_t* blocks) {
    const auto round = format.tile == Tile::Q8    ? round_q8_0
                       : format.tile == Tile::Q4M ? round_q4_1
                                                  : nullptr;
    if (!round || count % kGroup)
        throw std::invalid_argument("numbers are rounded to q8_0 or q4_1 by 32, not " + std::to_string(count) +
                                    " to " + format.name);
    for (std::size_t i = 0; i < count; i += kGroup, blocks += format.block_nbytes) {
        if (are_finite(values + i)) {
            round(values + i, blocks);
        } else {
            std::memset(blocks, 0, format.block_nbytes);
            put_half(blocks, std::nanf(""));
        }
    }
}

}  // namespace forerun
