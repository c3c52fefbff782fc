// Prints the nanoseconds that a phase takes longer than its pieces, one of about 2 us for each of `argv[1]` threads: the
// median of many jobs.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "model/pool.h"

namespace {

// So long that every thread gets its own piece.
void work() {
    unsigned x = 1;
    for (int i = 0; i < 2000; ++i) x = x * 1664525u + 1013904223u;
    static volatile unsigned sink;
    sink = x;
}

double ns_of(forerun::Pool* pool, const std::vector<int>& pieces) {
    const auto run = [](void*, forerun::Worker& worker) {
        while (!worker.is_over()) worker.each([](int) { work(); });
    };
    const auto start = std::chrono::steady_clock::now();
    if (pool)
        pool->run(run, nullptr, pieces);
    else
        for (std::size_t i = 0; i < pieces.size(); ++i) work();
    const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
    return taken.count() / static_cast<double>(pieces.size());
}

}  // namespace

int main(int, char** argv) {
    const int num_threads = std::atoi(argv[1]), num_phases = 1000, num_jobs = 200;
    forerun::Pool pool(num_threads);
    const std::vector<int> pieces(num_phases, num_threads);
    std::vector<double> more;
    for (int job = 0; job < num_jobs; ++job) {
        const double alone = ns_of(nullptr, pieces);
        more.push_back(ns_of(&pool, pieces) - alone);
    }
    std::nth_element(more.begin(), more.begin() + num_jobs / 2, more.end());
    std::printf("%.1f\n", more[num_jobs / 2]);
}
