#include "isa/isa.h"

#include <stdexcept>

#ifdef FORERUN_ARM
#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(_WIN32)
#include <windows.h>
#endif
#endif

namespace forerun {
namespace {

#ifdef FORERUN_ARM
struct ArmFeatures {
    bool has_dotprod = false, has_i8mm = false;
};

// What the system says of this processor; an unknown system says nothing.
ArmFeatures arm_features() {
#if defined(__linux__)
    // HWCAP_ASIMDDP and HWCAP2_I8MM, which older headers do not name.
    return {(getauxval(AT_HWCAP) >> 20 & 1) != 0, (getauxval(AT_HWCAP2) >> 13 & 1) != 0};
#elif defined(__APPLE__)
    const auto has = [](const char* name) {
        int value = 0;
        std::size_t size = sizeof value;
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    return {has("hw.optional.arm.FEAT_DotProd"), has("hw.optional.arm.FEAT_I8MM")};
#elif defined(_WIN32)
    constexpr DWORD dotprod = 43, i8mm = 67;  // PF_ARM_V82_DP_..., PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE
    return {IsProcessorFeaturePresent(dotprod) != 0, IsProcessorFeaturePresent(i8mm) != 0};
#else
    return {};
#endif
}
#endif

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
#ifdef FORERUN_ARM
    const ArmFeatures features = arm_features();
    if (features.has_dotprod && features.has_i8mm) all.push_back(&neon_i8mm::kernels);
    if (features.has_dotprod) all.push_back(&neon::kernels);
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
