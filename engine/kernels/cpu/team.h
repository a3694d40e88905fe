// The threads that compute one step together. A step has some two hundred short phases; a fork and
// join of OpenMP for each would cost more than the phases, so a step is one parallel region whose
// threads meet at the barrier below.
#pragma once

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <optional>

#if defined(__x86_64__)
#include <immintrin.h>
inline void spin_hint() { _mm_pause(); }
#else
inline void spin_hint() {}
#endif

class Team {
   public:
    explicit Team(int size) : size_(size) {}

    int size() const { return size_; }

    // Every thread of the team must call it; what each wrote before is seen by all after it.
    // The work counter starts again at 0.
    void barrier() {
        if (size_ == 1) {
            next_.store(0, std::memory_order_relaxed);
            return;
        }
        const uint32_t phase = phase_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            next_.store(0, std::memory_order_relaxed);
            phase_.store(phase + 1, std::memory_order_release);
            return;
        }
        // A thread that spins on while its peer waits for a core only makes the peer later.
        for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; ++spins) {
            if (spins < kSpins) {
                spin_hint();
            } else {
                sched_yield();
            }
        }
    }

    // The next piece of work, handed out to whoever asks first. Only between two barriers:
    //   for (int64_t i = team.take(); i < n; i = team.take()) ...
    //   team.barrier();
    int64_t take() { return next_.fetch_add(1, std::memory_order_relaxed); }

   private:
    static constexpr int kSpins = 4000;

    const int size_;
    // Each on a cache line of its own: one is hammered while another is polled.
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
    alignas(64) std::atomic<int64_t> next_{0};
};

// Run work(team, thread) on each thread of a team of at most `num_threads`. OpenMP may give fewer
// than were asked for, so the team is made from what it gave.
template <typename Work>
void run_team(int num_threads, const Work& work) {
    std::optional<Team> team;
#pragma omp parallel num_threads(num_threads)
    {
#pragma omp single
        team.emplace(omp_get_num_threads());
        work(*team, omp_get_thread_num());
    }
}
