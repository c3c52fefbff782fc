#include "model/ranks.h"

#include <stdexcept>
#include <thread>
#include <utility>

#include "platform.h"

namespace forerun {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free, "ranks count in memory that they share");

Ranks::Ranks(int rank, int size, std::size_t num_floats, std::uint8_t* memory, std::size_t nbytes,
             Gather gather)
    : rank_(rank), size_(size), num_floats_(num_floats), memory_(memory), gather_(std::move(gather)) {
    if (size < 1 || rank < 0 || rank >= size) throw std::invalid_argument("no such rank");
    if (nbytes < Ranks::nbytes(size, num_floats))
        throw std::invalid_argument("the memory is too small for the parts of all ranks");
}

void Ranks::all_reduce(std::size_t count) {
    const std::uint32_t next = turn_ + 1;
    if (gather_) {
        gather_(parts(turn_), count);
    } else {
        turns_of(rank_).store(next, std::memory_order_release);
        for (int other = 0; other < size_; ++other)
            // Counts of turns may run over.
            for (int spins = 0; static_cast<std::int32_t>(
                                    turns_of(other).load(std::memory_order_acquire) - next) < 0;
                 ++spins) {
                platform::relax();
                if (spins > 2048) std::this_thread::yield();  // it has lost its core
            }
    }
    turn_ = next;
}

}  // namespace forerun
