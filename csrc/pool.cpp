#include "pool.h"

#include <chrono>

namespace forerun {
namespace {

// Long enough for the work of a step that is not ours (sampling, drafting), short enough to be nothing.
constexpr auto kWatch = std::chrono::microseconds(300);

}  // namespace

Pool::~Pool() {
    if (!workers_) return;
    if (workers_->owner != getpid()) {  // a forked child: these threads exist only in the parent
        (void)workers_.release();
        return;
    }
    stop_ = true;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    for (std::thread& thread : workers_->threads) thread.join();
}

void Pool::start() {
    (void)workers_.release();  // null, or what a fork left behind
    arrived_ = 0;
    workers_ = std::make_unique<Workers>();
    workers_->owner = getpid();
    const std::uint32_t seen = round_.load();
    for (int i = 1; i < num_threads_; ++i) workers_->threads.emplace_back([this, i, seen] { work(i, seen); });
}

void Pool::run(Call call, void* job) {
    if (num_threads_ > 1 && (!workers_ || workers_->owner != getpid())) start();
    call_ = call;
    job_ = job;
    if (num_threads_ > 1) {
        round_.fetch_add(1, std::memory_order_release);
        round_.notify_all();
    }
    call(job, 0);
    barrier();
}

void Pool::work(int thread, std::uint32_t seen) {
    for (;;) {
        const auto deadline = std::chrono::steady_clock::now() + kWatch;
        for (int spins = 0; round_.load(std::memory_order_acquire) == seen; ++spins) {
            relax();
            if (spins % 64 == 63 && std::chrono::steady_clock::now() > deadline) round_.wait(seen);
        }
        seen = round_.load(std::memory_order_acquire);
        if (stop_) return;
        call_(job_, thread);
        barrier();
    }
}

void Pool::barrier() {
    if (num_threads_ == 1) return;
    const std::uint32_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == num_threads_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.fetch_add(1, std::memory_order_release);
        return;
    }
    for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
        relax();
        if (spins > 4096) std::this_thread::yield();  // someone else has the other core
    }
}

}  // namespace forerun
