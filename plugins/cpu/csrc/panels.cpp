#include "panels.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>

#include "products.h"

namespace theodolite {

namespace {

constexpr size_t LINE = 64, HUGE = 2 << 20, CHUNK = 16 << 20;

// Memory for panels, cut one after the other from chunks of huge pages: a short text reads every weight once, and with
// small pages looking up where each of them lies takes a tenth of that. A chunk ends with the last panels in it.
std::shared_ptr<float[]> allocate(size_t bytes) {
  static std::mutex mutex;
  static std::weak_ptr<std::byte> current;
  static size_t used = 0, size = 0;
  bytes = (bytes + LINE - 1) / LINE * LINE;
  std::lock_guard<std::mutex> lock(mutex);
  std::shared_ptr<std::byte> chunk = current.lock();
  if (chunk == nullptr || used + bytes > size) {
    size = std::max(CHUNK, (bytes + HUGE - 1) / HUGE * HUGE);
    used = 0;
    void* memory = std::aligned_alloc(HUGE, size);
    if (memory == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
    madvise(memory, size, MADV_HUGEPAGE);  // where the system has them to give
#endif
    chunk = std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [](std::byte* p) { std::free(p); });
    current = chunk;
  }
  auto* start = reinterpret_cast<float*>(chunk.get() + used);
  used += bytes;
  return std::shared_ptr<float[]>(chunk, start);
}

}  // namespace

Panels::Panels(const float* weight, long rows, long columns) : n(rows), k(columns), data_(allocate(nbytes())) {
  pack(weight, data_.get(), n, k);
}

}  // namespace theodolite
