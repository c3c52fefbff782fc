// Does an instruction set compute what the portable kernels compute, on this very processor?

#include <cstring>
#include <vector>

#include "formats.h"
#include "isa.h"

namespace forerun {
namespace {

constexpr int kWidth = 256, kRows = 13;  // tiles of 8, 4 and 1 rows

// Bytes that are finite and positive whether they are read as codes, fp16, bf16 or fp32.
std::vector<std::uint8_t> some_weights() {
    std::vector<std::uint8_t> bytes(kTile * kWidth * sizeof(float));
    for (std::size_t i = 0; i < bytes.size(); ++i)
        bytes[i] = static_cast<std::uint8_t>(i * 37 % 59);
    return bytes;
}

struct Results {
    std::vector<float> x, out, row;
    std::vector<std::int8_t> q;
    std::vector<float> scale, sum;
    std::vector<std::int32_t> half_sum;
    std::vector<std::uint16_t> keys, values;

    bool operator==(const Results& other) const {
        const auto same = [](const auto& a, const auto& b) {
            return std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
        };
        return same(out, other.out) && same(row, other.row) && same(q, other.q) &&
               same(scale, other.scale) && same(sum, other.sum) && same(half_sum, other.half_sum) &&
               same(keys, other.keys) && same(values, other.values);
    }
};

Results compute(const Kernels& kernels) {
    const std::vector<std::uint8_t> weights = some_weights();
    Results r;
    r.x.resize(kRows * kWidth);
    for (std::size_t i = 0; i < r.x.size(); ++i)
        r.x[i] = static_cast<float>(static_cast<int>(i * 31 % 201) - 100) / 16.0f;
    r.q.resize(r.x.size());
    r.scale.resize(r.x.size() / kGroup);
    r.sum.resize(r.scale.size());
    r.half_sum.resize(2 * r.scale.size());
    const Rows rows{kWidth,         r.x.data(),   r.q.data(),
                    r.scale.data(), r.sum.data(), r.half_sum.data()};
    for (int row = 0; row < kRows; ++row)
        kernels.quantize(r.x.data() + row * kWidth, rows, row, 0, kWidth);

    for (const WeightFormat& format : weight_formats()) {
        Linear linear;
        linear.format = &format;
        linear.num_out = kTile;
        linear.num_in = kWidth;
        linear.tiles = weights.data();
        r.out.resize(r.out.size() + kRows * kTile);
        kernels.linear(linear, 0, 1, rows, 0, kRows,
                       {r.out.data() + r.out.size() - kRows * kTile, kTile, false, 1.0f});
    }
    r.row.resize(kWidth);
    kernels.norm(r.x.data(), {r.x.data() + kWidth, nullptr, 1e-5f, false}, kWidth, r.row.data());
    kernels.activate(Activation::Silu, r.row.data(), r.x.data(), kWidth, r.row.data());
    r.keys.resize(kTile * kWidth);
    r.values.resize(kWidth);
    kernels.write_key(r.keys.data(), true, kWidth, 3, r.row.data());
    kernels.write_value(r.values.data(), true, kWidth, 0, r.row.data());
    return r;
}

}  // namespace

bool agrees_with_portable(const Kernels& kernels) {
    return compute(kernels) == compute(portable_kernels());
}

}  // namespace forerun
