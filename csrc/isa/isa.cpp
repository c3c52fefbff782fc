#include "isa/isa.h"

#include <stdexcept>

#include "platform.h"

namespace forerun {
namespace {

#ifdef FORERUN_X86
decltype(&avx512_amx::flat_linear) flat_linear = avx512_amx::flat_linear;

// AVX-512's, with tiles where rows are flattened and many.
const Kernels& with_tiles() {
    static const Kernels kernels = [] {
        Kernels all = avx512::kernels;
        all.name = "avx512_amx";
        all.linear = [](const Linear& linear, int tile, int num_tiles, const Rows& rows, int row, int num_rows,
                        const Output& output) {
            const auto take = linear.format->is_flat() && num_rows > kRowsAside ? flat_linear : avx512::kernels.linear;
            take(linear, tile, num_tiles, rows, row, num_rows, output);
        };
        return all;
    }();
    return kernels;
}
#endif

// Those this processor can run, best first.
std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> all;
#if defined(FORERUN_X86) || defined(FORERUN_ARM)
    const platform::Features found = platform::features();
#endif
#ifdef FORERUN_X86
    const bool is_emulated = flat_linear != avx512_amx::flat_linear;
    if (found.amx || is_emulated) all.push_back(&with_tiles());
    if (found.avx512) all.push_back(&avx512::kernels);
    if (found.avxvnni) all.push_back(&avxvnni::kernels);
    if (found.avx2) all.push_back(&avx2::kernels);
#endif
#ifdef FORERUN_ARM
    if (found.dotprod && found.i8mm) all.push_back(&neon_i8mm::kernels);
    if (found.dotprod) all.push_back(&neon::kernels);
#endif
    all.push_back(&portable::kernels);
    return all;
}

// A compiler's or a processor's mistake must cost speed, never a token.
const Kernels& automatic() {
    for (const Kernels* kernels : runnable())
        if (wrong_kernels(*kernels).empty()) return *kernels;
    return portable::kernels;
}

}  // namespace

std::vector<std::string> runnable_isas() {
    std::vector<std::string> names;
    for (const Kernels* kernels : runnable()) names.emplace_back(kernels->name);
    return names;
}

void emulate_tiles([[maybe_unused]] decltype(&avx512_amx::flat_linear) other) {
#ifdef FORERUN_X86
    flat_linear = other;
#endif
}

const Kernels& kernels_for(const std::string& name) {
    if (name == "auto") {
        static const Kernels& best = automatic();
        return best;
    }
    std::string known;
    for (const Kernels* kernels : runnable()) {
        if (name == kernels->name) return *kernels;
        known += std::string(known.empty() ? "" : ", ") + kernels->name;
    }
    throw std::invalid_argument("instruction set '" + name +
                                "' is unknown or cannot run here (those that can: " + known + ")");
}

}  // namespace forerun
