// Random jobs, back to back, on pools of 1 to `argv[1]` threads, more than there are cores: every piece is done once,
// after all of the phase before and what finishes it, and none after its job; a piece that throws fails its job alone;
// a job that stops leaves out the rest. Exits with 0 if so, for `argv[2]` jobs a pool.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <vector>

#include "model/pool.h"

using forerun::Pool;
using forerun::Worker;

namespace {

// What is written without atomics shows a thread sanitizer whether the phases are in order.
struct Work {
    std::vector<int> pieces, firsts;  // of phases: their number, and the first one of all
    std::vector<int> done, seen;      // of pieces: how often, and `sum` then
    int failing = -1, stopping = -1;  // a piece; a phase
    int looks_every = 1;              // phases between two looks whether the job is over; 0: it never looks
    int sum = 0;                      // of the phases that are finished: their numbers, from 1 on
    bool has_others = false;          // a piece was done that is none of its own

    void piece(int phase, int index) {
        if (index >= pieces[phase]) {
            has_others = true;
            return;
        }
        const int at = firsts[phase] + index;
        ++done[at];
        seen[at] = sum;
        if (at == failing) throw std::bad_alloc();
    }
    void finish(Worker& worker, int phase) {
        sum += phase + 1;
        if (phase == stopping) worker.stop();
    }
};

void run(void* self, Worker& worker) {
    Work& work = *static_cast<Work*>(self);
    const int num_phases = static_cast<int>(work.pieces.size());
    for (int phase = 0; phase < num_phases; ++phase) {
        if (work.looks_every > 0 && phase % work.looks_every == 0 && worker.is_over()) return;
        worker.each([&](int index) { work.piece(phase, index); }, [&] { work.finish(worker, phase); });
    }
}

Work random_work(std::mt19937& random, int num_threads) {
    Work work;
    int total = 0;
    for (int phases = 1 + random() % 12; phases > 0; --phases) {
        const int kinds[] = {0, 1, 2, num_threads, 4 * num_threads, static_cast<int>(random() % 100)};
        work.firsts.push_back(total);
        work.pieces.push_back(kinds[random() % 6]);
        total += work.pieces.back();
    }
    if (random() % 2 == 0) {  // as passes and draft networks end, with few rows
        work.firsts.push_back(total);
        work.pieces.push_back(0);
    }
    work.looks_every = static_cast<int>(random() % 4);
    work.done.assign(total, 0);
    work.seen.assign(total, 0);
    if (total > 0 && random() % 4 == 0) work.failing = static_cast<int>(random() % total);
    if (random() % 4 == 0) work.stopping = static_cast<int>(random() % work.pieces.size());
    return work;
}

// Whether pieces and finishes were done as they should; then counts the phases.
bool is_right(const Work& work, int& num_phases, bool& fails) {
    int sum = 0;
    bool is_right = !work.has_others, is_stopped = false;
    for (int phase = 0; phase < static_cast<int>(work.pieces.size()); ++phase) {
        for (int i = 0; i < work.pieces[phase]; ++i) {
            const int at = work.firsts[phase] + i;
            is_right &= work.done[at] == !is_stopped && (is_stopped || work.seen[at] == sum);
            fails |= !is_stopped && at == work.failing;
        }
        if (is_stopped || work.pieces[phase] == 0) continue;
        sum += phase + 1;
        ++num_phases;
        is_stopped = phase == work.stopping;
    }
    return is_right && work.sum == sum;
}

bool holds(Pool& pool, Work& work, int num_active) {
    bool has_thrown = false, fails = false;
    try {
        pool.run(run, &work, work.pieces, num_active);
    } catch (const std::bad_alloc&) {
        has_thrown = true;
    }
    int num_phases = 0;
    return is_right(work, num_phases, fails) && has_thrown == fails && pool.num_phases() == num_phases;
}

// Whether no late thread has done anything since.
bool stay_right(const std::vector<Work>& jobs) {
    int num_phases = 0;
    bool fails = false;
    for (const Work& work : jobs)
        if (!is_right(work, num_phases, fails)) return false;
    return true;
}

}  // namespace

int main(int, char** argv) {
    const int most_threads = std::atoi(argv[1]), num_jobs = std::atoi(argv[2]);
    std::mt19937 random(1);
    for (int threads = 1; threads <= most_threads; threads += threads < 10 ? 1 : threads / 3) {
        std::vector<Work> jobs;  // late threads still look at the last one: all stay, as long as the pool
        Pool pool(threads);
        jobs.reserve(num_jobs);
        for (int job = 0; job < num_jobs; ++job) {
            jobs.push_back(random_work(random, threads));
            bool is_right = holds(pool, jobs.back(), 1 + static_cast<int>(random() % threads));
            if (job % 16 == 15) {
                pool.settle();
                is_right &= stay_right(jobs);
                jobs.clear();
            }
            if (!is_right) {
                std::printf("with %d threads job %d went wrong\n", threads, job);
                return 1;
            }
        }
    }
}
