// All that differs by system and processor outside the kernels, POSIX, macOS and Windows side by side in platform.cpp:
// memory, which process this is, and what the processor can do.

#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun::platform {

// Zeroed memory of its own, at the start of a page and, where the system has huge pages, at a multiple of
// `alignment` if it is no smaller. Throws std::bad_alloc.
std::uint8_t* map(std::size_t nbytes, std::size_t alignment);
void unmap(std::uint8_t* first, std::size_t nbytes);
// Only advice, which some systems have no words for: without it everything works, a little slower or larger.
void advise_huge_pages(std::uint8_t* first, std::size_t nbytes);
void advise_small_pages(std::uint8_t* first, std::size_t nbytes);
std::size_t page_size();
// Gives the system the whole pages of a mapped range that nothing is read from any more; they are zero when next
// touched.
void return_pages(std::uint8_t* first, std::uint8_t* end);

// Tells a process from those that are forked off it; the same everywhere where nothing forks.
std::int64_t process();

// While it lives, the thread computes as IEEE 754 says: rounding to nearest, denormals kept. Another library may have
// set it otherwise (torch.set_flush_denormal, anything linked with -ffast-math), and then what a piece of work gives
// would depend on the thread that did it.
class IeeeFloats {
  public:
    IeeeFloats();
    ~IeeeFloats();
    IeeeFloats(const IeeeFloats&) = delete;
    IeeeFloats& operator=(const IeeeFloats&) = delete;

  private:
    const std::uint64_t before_;
};

// For loops that wait: lets the core's other thread work.
inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // `yield` does nothing on most cores; this takes about as long as x86's pause
#endif
}

// What the processor and the system together let programs use; what is unknown is not there.
struct Features {
    bool avx2 = false, avx512 = false, avxvnni = false;  // with all that the kernels of that name need
    bool amx = false;  // and the system has let this process use tiles
    bool dotprod = false, i8mm = false;
};
Features features();

// How far ahead weights are fetched: far enough to hide memory, near enough to stay in the first-level cache. 3 KB on
// Xeons with AMX, 7 KB elsewhere; either is 5 to 15 % slower in the other's place (dev/LOG.md).
extern const std::size_t prefetch_nbytes;

}  // namespace forerun::platform
