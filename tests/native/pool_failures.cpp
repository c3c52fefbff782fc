// A piece of work that throws: its job is finished, the caller gets the exception, and the pool works on.
// Exits with 0 if so, for pools of 1 to 8 threads.

#include <atomic>
#include <cstdio>
#include <new>

#include "model/pool.h"

using forerun::Pool;
using forerun::Worker;

namespace {

struct Work {
    int failing = -1;  // a piece of the first phase
    std::atomic<int> num_done{0};
    int between = 0;  // pieces of the first phase that were done when the second one began
};
constexpr int kPieces = 64;

void run(void* self, Worker& worker) {
    Work& work = *static_cast<Work*>(self);
    worker.each([&](int piece) {
        if (piece == work.failing) throw std::bad_alloc();
        ++work.num_done;
    });
    worker.each([&](int) { work.between = work.num_done; });
    worker.each([&](int) { ++work.num_done; });
}

bool holds(int num_threads) {
    static constexpr int pieces[] = {kPieces, 1, kPieces};
    Pool pool(num_threads);
    for (int round = 0; round < 200; ++round) {
        Work work;
        work.failing = round % 3 == 0 ? round % kPieces : -1;
        const int failed = work.failing >= 0;
        bool has_thrown = false;
        try {
            pool.run(run, &work, pieces);
        } catch (const std::bad_alloc&) {
            has_thrown = true;
        }
        pool.settle();
        if (has_thrown != failed || work.num_done != 2 * kPieces - failed ||
            work.between != kPieces - failed)
            return false;
    }
    return true;
}

}  // namespace

int main() {
    for (int num_threads = 1; num_threads <= 8; ++num_threads)
        if (!holds(num_threads)) {
            std::printf("with %d threads a failure is lost or work is left out\n", num_threads);
            return 1;
        }
}
