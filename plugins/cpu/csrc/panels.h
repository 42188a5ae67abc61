// A weight packed for the tiles, kept as long as the weight.
#pragma once

#include <memory>

#include "gemm.h"

namespace theodolite {

class Panels {
 public:
  Panels(const float* weight, long n, long k);

  const float* data() const {
    return data_.get();
  }

  long nbytes() const {
    return packed_size(n, k) * static_cast<long>(sizeof(float));
  }

  const long n, k;

 private:
  std::shared_ptr<float[]> data_;
};

}  // namespace theodolite
