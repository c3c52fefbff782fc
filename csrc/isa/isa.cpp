#include "isa/isa.h"

#include <stdexcept>

#include "platform.h"

namespace forerun {
namespace {

std::vector<const Kernels*>& added() {
    static std::vector<const Kernels*> all;
    return all;
}

// Those this processor can run, best first.
std::vector<const Kernels*> runnable() {
    std::vector<const Kernels*> all;
#if defined(FORERUN_X86) || defined(FORERUN_ARM)
    const platform::Features found = platform::features();
#endif
#ifdef FORERUN_X86
    if (found.avx512) all.push_back(&avx512::kernels);
    if (found.amx) all.push_back(&avx512_amx::kernels);  // only by name: not measured yet
    if (found.avxvnni) all.push_back(&avxvnni::kernels);
    if (found.avx2) all.push_back(&avx2::kernels);
#endif
#ifdef FORERUN_ARM
    if (found.dotprod && found.i8mm) all.push_back(&neon_i8mm::kernels);
    if (found.dotprod) all.push_back(&neon::kernels);
#endif
    all.push_back(&portable::kernels);
    all.insert(all.end(), added().begin(), added().end());
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

void add_kernels(const Kernels& kernels) { added().push_back(&kernels); }

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
