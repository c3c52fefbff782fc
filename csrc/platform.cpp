#include "platform.h"

#include <new>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#else
#error "forerun's kernels run on Linux and other POSIX systems, macOS and Windows; without them forerun runs on torch"
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace forerun::platform {
namespace {

// The register of rounding and denormals.
#if defined(__x86_64__)
constexpr std::uint64_t kIeee = 0x1F80;  // MXCSR when a program begins: exceptions masked, nothing flushed
std::uint64_t float_mode() { return __builtin_ia32_stmxcsr(); }
void set_float_mode(std::uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
constexpr std::uint64_t kIeee = 0;  // FPCR
std::uint64_t float_mode() {
    std::uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
void set_float_mode(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
constexpr std::uint64_t kIeee = 0;
std::uint64_t float_mode() { return kIeee; }
void set_float_mode(std::uint64_t) {}
#endif

#if defined(__x86_64__)
// Whether tiles are as large as the kernels configure them; virtual machines may show the feature without them.
bool has_palette() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!__get_cpuid_count(0x1D, 1, &a, &b, &c, &d)) return false;
    return (a >> 16) == 1024 && (b & 0xFFFFu) == 64 && (b >> 16) >= 8 && (c & 0xFFFFu) >= 16;
}

// Asks the system for them: it saves 8 KB more of each thread.
bool may_use_tiles() {
    constexpr int kTileData = 18;  // the registers' number among those that are saved
#if defined(__linux__)
    constexpr int kRequest = 0x1023;  // ARCH_REQ_XCOMP_PERM, which older headers do not name
    return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#elif defined(_WIN32)
    const HMODULE kernel = GetModuleHandleA("kernel32.dll");
    const auto enable = kernel == nullptr ? nullptr
                                          : reinterpret_cast<BOOL(WINAPI*)(DWORD64)>(reinterpret_cast<void*>(
                                                GetProcAddress(kernel, "EnableProcessOptionalXStateFeatures")));
    return enable != nullptr && enable(1ull << kTileData) != 0;
#else
    return false;
#endif
}
#endif

}  // namespace

IeeeFloats::IeeeFloats() : before_(float_mode()) { set_float_mode(kIeee); }
IeeeFloats::~IeeeFloats() { set_float_mode(before_); }

std::size_t page_size() {
#if defined(_WIN32)
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
#else
    return static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
#endif
}

std::uint8_t* map(std::size_t nbytes, std::size_t alignment) {
#if defined(_WIN32)
    (void)alignment;  // it matters to huge pages, which programs do not get here
    void* p = VirtualAlloc(nullptr, nbytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
    if (p == nullptr) throw std::bad_alloc();
#else
    if (nbytes < alignment) alignment = 0;
    void* p = mmap(nullptr, nbytes + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    if (alignment != 0) {  // what lies around the aligned part goes back at once
        auto* const first = static_cast<std::uint8_t*>(p);
        const std::size_t before = alignment - reinterpret_cast<std::uintptr_t>(p) % alignment;
        munmap(first, before);
        if (before < alignment) munmap(first + before + nbytes, alignment - before);
        p = first + before;
    }
#endif
    return static_cast<std::uint8_t*>(p);
}

void unmap(std::uint8_t* first, [[maybe_unused]] std::size_t nbytes) {
#if defined(_WIN32)
    VirtualFree(first, 0, MEM_RELEASE);
#else
    munmap(first, nbytes);
#endif
}

// Linux alone takes such advice. macOS and Windows have huge pages for privileged programs only.
void advise_huge_pages([[maybe_unused]] std::uint8_t* first, [[maybe_unused]] std::size_t nbytes) {
#if defined(MADV_HUGEPAGE)
    madvise(first, nbytes, MADV_HUGEPAGE);
#endif
}
void advise_small_pages([[maybe_unused]] std::uint8_t* first, [[maybe_unused]] std::size_t nbytes) {
#if defined(MADV_NOHUGEPAGE)
    madvise(first, nbytes, MADV_NOHUGEPAGE);
#endif
}

void return_pages(std::uint8_t* first, std::uint8_t* end) {
    const std::uintptr_t size = page_size(), from = reinterpret_cast<std::uintptr_t>(first);
    const std::uintptr_t start = (from + size - 1) / size * size,
                         stop = reinterpret_cast<std::uintptr_t>(end) / size * size;
    if (start >= stop) return;
    void* const p = reinterpret_cast<void*>(start);
#if defined(_WIN32)
    VirtualFree(p, stop - start, MEM_DECOMMIT);
    VirtualAlloc(p, stop - start, MEM_COMMIT, PAGE_READWRITE);
#elif defined(__linux__)
    madvise(p, stop - start, MADV_DONTNEED);
#else
    // Elsewhere MADV_DONTNEED may keep the contents: new pages take the place of the old.
    mmap(p, stop - start, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
#endif
}

std::int64_t process() {
#if defined(_WIN32)
    return 0;
#else
    return getpid();
#endif
}

Features features() {
    Features found;
#if defined(__x86_64__)
    // By hand: the compilers' own functions for it are missing from the libraries of clang on Windows.
    unsigned a = 0, b = 0, c = 0, d = 0;
    const auto bit = [](unsigned word, int place) { return (word >> place & 1u) != 0; };
    if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
    const bool has_fma = bit(c, 12), has_f16c = bit(c, 29);
    if (!bit(c, 27) || !bit(c, 28)) return found;  // no xgetbv, no AVX
    unsigned state = 0, upper = 0;                 // the registers that the system saves
    asm volatile("xgetbv" : "=a"(state), "=d"(upper) : "c"(0));
    if ((state & 0x6u) != 0x6u || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return found;
    const unsigned subleaves = a;
    found.avx2 = bit(b, 5) && has_fma && has_f16c;
    const bool has_avx512 = bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);  // f, dq, bw, vl
    found.avx512 = found.avx2 && has_avx512 && bit(c, 11) && (state & 0xE6u) == 0xE6u;  // vnni
    const bool has_tiles = bit(d, 24) && bit(d, 25);  // and their int8
    found.amx = found.avx512 && has_tiles && (state & 0x60000u) == 0x60000u && has_palette() && may_use_tiles();
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d))
        found.avxvnni = found.avx2 && bit(a, 4);
#elif defined(__aarch64__) && defined(__linux__)
    // HWCAP_ASIMDDP and HWCAP2_I8MM, which older headers do not name.
    found.dotprod = (getauxval(AT_HWCAP) >> 20 & 1) != 0;
    found.i8mm = (getauxval(AT_HWCAP2) >> 13 & 1) != 0;
#elif defined(__aarch64__) && defined(__APPLE__)
    const auto has = [](const char* name) {
        int value = 0;
        std::size_t size = sizeof value;
        return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
    };
    found.dotprod = has("hw.optional.arm.FEAT_DotProd");
    found.i8mm = has("hw.optional.arm.FEAT_I8MM");
#elif defined(__aarch64__) && defined(_WIN32)
    // PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE and PF_ARM_V82_I8MM_INSTRUCTIONS_AVAILABLE, which older headers do not name.
    found.dotprod = IsProcessorFeaturePresent(43) != 0;
    found.i8mm = IsProcessorFeaturePresent(67) != 0;
#endif
    return found;
}

const std::size_t prefetch_nbytes = features().amx ? 3072 : 7168;

}  // namespace forerun::platform
