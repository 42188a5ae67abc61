// One pool of threads for all operations of the process: the caller works too, and idle threads spin briefly before
// they sleep, as the next operation follows within microseconds.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace theodolite {

class Pool {
 public:
  static Pool& get() {
    static Pool* pool = new Pool();  // never destroyed: threads may outlive static destructors
    return *pool;
  }

  int size() const {
    return static_cast<int>(threads_.size()) + 1;
  }

  // Calls job(0) ... job(count - 1), in any order, on all threads; returns when all are done.
  void run(int count, const std::function<void(int)>& job) {
    if (count <= 1 || threads_.empty()) {
      for (int i = 0; i < count; i++) {
        job(i);
      }
      return;
    }
    std::lock_guard<std::mutex> one_at_a_time(callers_);
    job_ = &job;
    count_ = count;
    next_.store(0, std::memory_order_relaxed);
    busy_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    {
      std::lock_guard<std::mutex> lock(mutex_);
      epoch_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    work();
    while (busy_.load(std::memory_order_acquire) > 0) {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int SPINS = 4000;

  Pool() {
    int wanted = static_cast<int>(std::thread::hardware_concurrency());
    for (int i = 1; i < wanted; i++) {
      threads_.emplace_back([this] { loop(); });
      threads_.back().detach();
    }
  }

  void work() {
    for (int i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      (*job_)(i);
    }
  }

  void loop() {
    unsigned long seen = 0;
    while (true) {
      for (int i = 0; i < SPINS && epoch_.load(std::memory_order_acquire) == seen; i++) {
        __builtin_ia32_pause();
      }
      if (epoch_.load(std::memory_order_acquire) == seen) {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [&] { return epoch_.load(std::memory_order_acquire) != seen; });
      }
      seen = epoch_.load(std::memory_order_acquire);
      work();
      busy_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> threads_;
  std::mutex callers_, mutex_;
  std::condition_variable wake_;
  std::atomic<unsigned long> epoch_{0};
  std::atomic<int> next_{0}, busy_{0};
  const std::function<void(int)>* job_ = nullptr;
  int count_ = 0;
};

}  // namespace theodolite
