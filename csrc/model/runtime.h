// What networks share: the kernels, the threads, and the memory of the pass that is running. One
// pass at a time; the others wait.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include "isa/isa.h"
#include "model/memory.h"
#include "model/pool.h"
#include "platform.h"

namespace forerun {

// Takes pieces of one block of memory, aligned to cache lines. Without a block it only counts.
class Scratch {
  public:
    explicit Scratch(std::uint8_t* data = nullptr) : data_(data) {}

    template <class T>
    T* take(std::size_t count) {
        std::uint8_t* piece = data_ + (data_ ? nbytes_ : 0);
        nbytes_ += (count * sizeof(T) + 63) / 64 * 64;
        return reinterpret_cast<T*>(piece);
    }
    // `wide`: how wide flattened rows may become.
    Rows take_rows(int num_rows, int width, int wide = 0) {
        wide = std::max(width, wide);
        // Whole groups, so that widths that are never quantized need no case of their own.
        const std::size_t groups = static_cast<std::size_t>(padded_rows(num_rows)) * ((wide + kGroup - 1) / kGroup);
        return {width,
                take<float>(static_cast<std::size_t>(num_rows) * width),
                take<std::int8_t>(groups * kGroup),
                take<float>(groups),
                take<float>(groups),
                take<std::int32_t>(2 * groups),
                wide};
    }
    std::size_t nbytes() const { return nbytes_; }
    bool is_real() const { return data_ != nullptr; }

  private:
    std::uint8_t* data_;
    std::size_t nbytes_ = 0;
};

class Runtime {
  public:
    // Throws std::invalid_argument for an instruction set that cannot run here.
    Runtime(const std::string& isa, int num_threads)
        : kernels(kernels_for(isa)), pool(num_threads) {}

    // Lays out a pass: calls lay_out(Scratch&) to learn how much it takes, then to take it. Memory
    // is allocated only for a larger pass than all before. Its contents are what the last pass
    // left.
    template <class LayOut>
    void lay_out(const LayOut& lay_out) {
        Scratch needed;
        lay_out(needed);
        if (needed.nbytes() > memory_.nbytes()) {
            memory_ = Buffer();
            memory_ = Buffer(with_slack(needed.nbytes()));
        }
        Scratch scratch(memory_.as<std::uint8_t>());
        lay_out(scratch);
    }
    // What is allocated for a pass that takes so much, so that a slightly larger one finds room.
    static std::size_t with_slack(std::size_t nbytes) { return nbytes + nbytes / 16; }
    // Bytes of scratch memory.
    std::size_t nbytes() const { return memory_.nbytes(); }

    // What a pass holds: no other one runs, and its floats are IEEE 754's.
    class PassLock {
      public:
        explicit PassLock(Runtime& runtime) : lock_(runtime.busy()) {}

      private:
        const std::scoped_lock<std::mutex> lock_;
        const platform::IeeeFloats floats_;
    };

    const Kernels& kernels;
    Pool pool;

  private:
    // In a process forked off during a pass, the thread that would release the mutex is missing.
    std::mutex& busy() {
        if (const std::int64_t now = platform::process(); process_.exchange(now) != now)
            new (&busy_) std::mutex;
        return busy_;
    }

    Buffer memory_;
    std::mutex busy_;
    std::atomic<std::int64_t> process_{platform::process()};
};

}  // namespace forerun
