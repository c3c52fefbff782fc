#include "isa.h"

#include <stdexcept>

namespace forerun {
namespace {

struct Choice {
    const Kernels& kernels;
    bool can_run;
};

std::vector<Choice> choices() {
    std::vector<Choice> all;
#ifdef FORERUN_X86
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vnni");
    all.push_back({avx512::kernels, has_avx512});
    all.push_back({avxvnni::kernels, has_avx2 && __builtin_cpu_supports("avxvnni")});
    all.push_back({avx2::kernels, has_avx2});
#endif
    all.push_back({portable::kernels, true});
    return all;
}

// A compiler's or a processor's mistake must cost speed, never a token.
const Kernels& automatic() {
    for (const Choice& choice : choices())
        if (choice.can_run && wrong_kernels(choice.kernels).empty()) return choice.kernels;
    return portable_kernels();
}

}  // namespace

std::vector<std::string> runnable_isas() {
    std::vector<std::string> names;
    for (const Choice& choice : choices())
        if (choice.can_run) names.emplace_back(choice.kernels.name);
    return names;
}

const Kernels& kernels_for(const std::string& name) {
    if (name == "auto") {
        static const Kernels& best = automatic();
        return best;
    }
    std::string known;
    for (const Choice& choice : choices()) {
        if (choice.can_run && name == choice.kernels.name) return choice.kernels;
        known += std::string(known.empty() ? "" : ", ") + choice.kernels.name;
    }
    throw std::invalid_argument("instruction set '" + name +
                                "' is unknown or cannot run here (compiled in: " + known + ")");
}

}  // namespace forerun
