// One pool of threads for all operations of the process: the caller works too, and idle threads spin briefly before
// they sleep, as the next operation follows within microseconds.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sched.h>

namespace theodolite {

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = make();
    return *pool;
  }

  int size() const {
    return wanted_;
  }

  // Calls job(0) ... job(count - 1), in any order, on all threads; returns when all are done. A thread that comes too
  // late is not waited for. `alone`: on the caller only, for work that is done before another thread has woken up.
  void run(int count, const std::function<void(int)>& job, bool alone = false) {
    if (alone || count <= 1 || wanted_ == 1) {
      for (int i = 0; i < count; i++) {
        job(i);
      }
      return;
    }
    std::lock_guard<std::mutex> one_at_a_time(callers_);
    start();
    keep_clear();
    job_ = &job;
    unfinished_.store(count, std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      epoch_++;
      tickets_.store(epoch_ << 32 | static_cast<uint32_t>(count), std::memory_order_release);
    }
    wake_.notify_all();
    while (work()) {
    }
    while (unfinished_.load(std::memory_order_acquire) > 0) {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int SPINS = 40000;  // about half a millisecond, longer than what comes between two operations

  static Pool* make() {
    static Pool* pool;
    pool = new Pool();  // never destroyed: threads may outlive static destructors
    // a fork copies no threads: the child starts its own
    pthread_atfork(nullptr, nullptr, [] { new (pool) Pool(); });
    return pool;
  }

  Pool() : wanted_(std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {}

  void start() {
    while (static_cast<int>(threads_.size()) < wanted_ - 1) {
      std::thread thread([this] { loop(); });
      threads_.push_back(thread.native_handle());
      thread.detach();
    }
  }

  // Keeps the other threads off the caller's core: a thread that is woken while all cores are busy for a moment may be
  // put behind the caller, and be left there for milliseconds though another core has long become idle.
  void keep_clear() {
#if defined(__linux__)
    int core = sched_getcpu();
    cpu_set_t others;
    if (core == callers_core_ || sched_getaffinity(0, sizeof(others), &others) != 0) return;
    CPU_CLR(core, &others);
    if (CPU_COUNT(&others) == 0) return;
    for (std::thread::native_handle_type thread : threads_) pthread_setaffinity_np(thread, sizeof(others), &others);
    callers_core_ = core;
#endif
  }

  // Does one job, if one is left. A ticket that was taken keeps its run from ending, and so job_ from changing.
  bool work() {
    uint64_t tickets = tickets_.load(std::memory_order_acquire);
    do {
      if (static_cast<uint32_t>(tickets) == 0) return false;
    } while (!tickets_.compare_exchange_weak(tickets, tickets - 1, std::memory_order_acq_rel));
    (*job_)(static_cast<int>(static_cast<uint32_t>(tickets) - 1));
    unfinished_.fetch_sub(1, std::memory_order_release);
    return true;
  }

  bool idle() const {
    return static_cast<uint32_t>(tickets_.load(std::memory_order_acquire)) == 0;
  }

  void loop() {
    while (true) {
      for (int i = 0; i < SPINS && idle(); i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      }
      if (idle()) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return !idle(); });
      }
      while (work()) {
      }
    }
  }

  const int wanted_;
  std::vector<std::thread::native_handle_type> threads_;
  int callers_core_ = -1;
  std::mutex callers_, mutex_;
  std::condition_variable wake_;
  uint64_t epoch_ = 0;
  std::atomic<uint64_t> tickets_{0};  // the run's number, and how many of its jobs nobody has taken
  std::atomic<int> unfinished_{0};
  const std::function<void(int)>* job_ = nullptr;
};

}  // namespace theodolite
