// A weight packed for the tiles, [n, k] in words; copies share them.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "gemm.h"
#include "products.h"

namespace theodolite {

class Panels {
 public:
  Panels(const float* weight, long rows, long columns) : n(rows), k(columns), data_(allocate(packed_size(n, k))) {
    pack(weight, data_.get(), n, k);
  }

  const float* data() const {
    return data_.get();
  }

  // The weight again.
  void unpack(float* weight) const {
    for (long row = 0; row < n; row++) {
      const float* panel = data() + row / PANEL * PANEL * k + row % PANEL;
      for (long i = 0; i < k; i++) weight[row * k + i] = panel[i * PANEL];
    }
  }

  const long n, k;

 private:
  // From a cache line on, which MLX does not promise: a register loaded across two lines takes twice as long.
  static std::shared_ptr<float[]> allocate(long count) {
    constexpr long line = 64;
    long bytes = count * static_cast<long>(sizeof(float));
    auto* data = static_cast<float*>(std::aligned_alloc(line, (bytes + line - 1) / line * line));
    if (data == nullptr) throw std::bad_alloc();
    return std::shared_ptr<float[]>(data, std::free);
  }

  std::shared_ptr<float[]> data_;
};

}  // namespace theodolite
