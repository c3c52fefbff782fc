#include "model/pool.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "platform.h"

namespace forerun {
namespace {

// Long enough for the work of a step that is not ours (sampling, drafting), short enough to be
// nothing.
constexpr auto kWatch = std::chrono::microseconds(300);

}  // namespace

bool Worker::claim(std::uint32_t& index) {
    Pool::Phase& phase = pool_.current_.load(std::memory_order_acquire)[phase_];
    for (; num_empty_ < pool_.num_threads_; ++num_empty_) {
        const int owner = (thread + num_empty_) % pool_.num_threads_;
        std::atomic<std::uint64_t>& claimed = phase.claimed[owner];
        std::uint64_t seen = claimed.load(std::memory_order_acquire);
        for (;;) {
            is_late_ = is_late_ || seen >> 32 != round_;
            if (is_late_) return false;
            const Part share(static_cast<int>(phase.count.load(std::memory_order_acquire)), owner,
                             pool_.num_threads_);
            index = share.first + static_cast<std::uint32_t>(seen);
            if (index >= static_cast<std::uint32_t>(share.stop)) break;
            // Succeeds only if the job is still on: a new one has changed the round.
            if (claimed.compare_exchange_weak(seen, seen + 1, std::memory_order_acq_rel))
                return true;
        }
    }
    return false;
}

void Worker::wait(std::uint32_t num_done) {
    Pool::Phase& phase = pool_.current_.load(std::memory_order_acquire)[phase_];
    num_empty_ = 0;
    if (num_done > 0) phase.done.fetch_add(num_done, std::memory_order_release);
    if (is_late_) return;
    for (int spins = 0;
         phase.done.load(std::memory_order_acquire) < phase.count.load(std::memory_order_acquire);
         ++spins) {
        if (pool_.round_.load(std::memory_order_acquire) != round_) {
            is_late_ = true;
            return;
        }
        platform::relax();
        if (spins > 2048) std::this_thread::yield();  // a piece's thread has lost its core
    }
}

Pool::Pool(int num_threads) : num_threads_(num_threads) {
    if (num_threads < 1 || num_threads > 1024)
        throw std::invalid_argument("threads must be 1 to 1024");
}

Pool::~Pool() {
    if (!threads_) return;
    if (threads_->owner != platform::process()) {  // a forked child: these threads exist only in the parent
        (void)threads_.release();
        return;
    }
    stop_ = true;
    round_.fetch_add(2, std::memory_order_release);
    round_.notify_all();
    for (std::thread& thread : threads_->threads) thread.join();
}

void Pool::start() {
    // What a fork in the middle of a job left behind: threads that are not here, phases half set up.
    (void)threads_.release();
    (void)phases_.release();
    num_phases_ = 0;
    round_ = 0;
    threads_ = std::make_unique<Threads>();
    threads_->owner = platform::process();
    num_inside_ = 0;
    for (int i = 1; i < num_threads_; ++i) threads_->threads.emplace_back([this, i] { work(i); });
}

void Pool::run(Job job, void* self, std::span<const int> pieces) {
    if (num_threads_ > 1 && (!threads_ || threads_->owner != platform::process())) start();
    const std::uint32_t round = round_.fetch_add(1, std::memory_order_acq_rel) + 2;
    if (pieces.size() > num_phases_) {
        outgrown_.push_back(std::move(phases_));
        num_phases_ = 2 * pieces.size();
        phases_ = std::make_unique<Phase[]>(num_phases_);
        for (std::size_t i = 0; i < num_phases_; ++i)
            phases_[i].claimed = std::make_unique<std::atomic<std::uint64_t>[]>(num_threads_);
        current_.store(phases_.get(), std::memory_order_release);
    }
    for (std::size_t i = 0; i < num_phases_; ++i) {
        for (int thread = 0; thread < num_threads_; ++thread)
            phases_[i].claimed[thread].store(std::uint64_t{round} << 32, std::memory_order_relaxed);
        phases_[i].done.store(0, std::memory_order_relaxed);
        phases_[i].count.store(i < pieces.size() ? static_cast<std::uint32_t>(pieces[i]) : 0,
                               std::memory_order_release);
    }
    job_.store(job, std::memory_order_relaxed);
    self_.store(self, std::memory_order_relaxed);
    round_.store(round, std::memory_order_release);
    if (num_threads_ > 1) round_.notify_all();
    Worker worker(*this, 0, round);
    job(self, worker);
    if (!has_failed_.load(std::memory_order_acquire)) return;
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    has_failed_ = false;
    std::rethrow_exception(failure);
}

void Worker::fail() noexcept {
    if (!pool_.has_failed_.exchange(true)) pool_.failure_ = std::current_exception();
}

void Pool::settle() {
    if (!threads_ || threads_->owner != platform::process()) return;
    round_.fetch_add(1);
    while (num_inside_.load() > 0) std::this_thread::yield();
    job_.store(nullptr, std::memory_order_relaxed);
    round_.fetch_add(1);
}

void Pool::work(int thread) {
    std::uint32_t seen = 0;
    const platform::IeeeFloats floats;
    while (!stop_.load(std::memory_order_acquire)) {
        const auto deadline = std::chrono::steady_clock::now() + kWatch;
        std::uint32_t round = round_.load(std::memory_order_acquire);
        for (int spins = 0;
             (round == seen || round % 2 == 1) && !stop_.load(std::memory_order_acquire); ++spins) {
            platform::relax();
            if (spins % 64 == 63 && std::chrono::steady_clock::now() > deadline) round_.wait(round);
            round = round_.load(std::memory_order_acquire);
        }
        if (stop_.load(std::memory_order_acquire)) return;
        seen = round;
        // In one order with `settle`: either it waits for this thread, or the round has changed.
        num_inside_.fetch_add(1);
        const Job job = job_.load(std::memory_order_acquire);
        void* self = self_.load(std::memory_order_acquire);
        if (round_.load() == round && job) {  // else torn: another job is being set up
            Worker worker(*this, thread, round);
            job(self, worker);
        }
        num_inside_.fetch_sub(1);
    }
}

}  // namespace forerun
