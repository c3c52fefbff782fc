// Integer dot products of codes with M rows, from those of 4 bytes: for instruction sets that take one row at a
// time. `codes_at(i)` gives the codes of inputs 8 i .. 8 i + 7 of 16 outputs; rows are kGroup bytes apart.

#pragma once

#include <cstdint>
#include <type_traits>

#include "model/types.h"

namespace forerun::FORERUN_ISA {

inline constexpr int kCodeRowTile = kRowTile;  // rows whose sums of codes stay in registers
inline constexpr bool kTakesAnyRows = true;  // whether 5 to 7 rows are computed at once

// Inputs 0..3 and 4..7.
struct Eight {
    Bytes low, high;
};

// Unsigned codes of 8 * STEPS inputs. A Narrow holds DOTS dots of 4, or any number where it is a Wide.
template <int STEPS, int DOTS, int M, class CodesAt>
inline void sum_codes(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
    static_assert(DOTS % 2 == 0 && 2 * STEPS % DOTS == 0);
    constexpr int steps = std::is_same_v<Narrow, Wide> ? STEPS : DOTS / 2;
    Narrow acc[M];
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const std::int8_t* row = x + m * kGroup + 8 * i;
            if (i % steps == 0)
                acc[m] = first_dot(codes.low, row);
            else
                add_dot(acc[m], codes.low, row);
            add_dot(acc[m], codes.high, row + 4);
            if (i == steps - 1)
                out[m] = widen(acc[m]);
            else if (i % steps == steps - 1)
                out[m] = add(out[m], widen(acc[m]));
        }
    }
}

// 8-bit codes, as load_codes8 and look_up give them.
template <int STEPS, int M, class CodesAt>
inline void sum_bytes(const CodesAt& codes_at, const std::int8_t* x, Wide (&out)[M]) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) out[m] = zero_wide();
#pragma GCC unroll 4
    for (int i = 0; i < STEPS; ++i) {
        const Eight codes = codes_at(i);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            const std::int8_t* row = x + m * kGroup + 8 * i;
            add_dot8(out[m], codes.low, row);
            add_dot8(out[m], codes.high, row + 4);
        }
    }
}

}  // namespace forerun::FORERUN_ISA
