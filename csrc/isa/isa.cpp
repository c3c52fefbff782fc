#include "isa/isa.h"

#include <stdexcept>

namespace forerun {
namespace {

// Those this processor can run, best first.
std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> all;
#ifdef FORERUN_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("f16c")) {
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vnni"))
            all.push_back(&avx512::kernels);
        if (__builtin_cpu_supports("avxvnni")) all.push_back(&avxvnni::kernels);
        all.push_back(&avx2::kernels);
    }
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
