// Linear layers and attention on raw pointers: blocks of work for the pool, products by our own tiles or by OpenBLAS.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "math.h"

namespace theodolite {

constexpr long FLAT_BLOCK = 1 << 14;  // numbers that one thread takes at a time

inline long blocks(long count, long size) {
  return (count + size - 1) / size;
}

// Opens the BLAS and keeps large blocks of memory from going back to the system at every free.
void setup(const std::string& library);

// All panels of w [n, k], one after the other.
void pack(const float* w, float* panels, long n, long k);

struct Layer {  // y[m, n] = act(x w^T + bias), with w [n, k] packed; bias may be null
  const float* panels;
  const float* bias;
  float* y;
  long n;
};

// Layers over the same rows x[m, k]. Where the weights are of bfloat16, x is rounded to that too.
void packed_linear(const float* x, const std::vector<Layer>& layers, bool bf16, long m, long k, Act act);

// y = act(x w^T + bias): [m, k] x [n, k] -> [m, n].
void linear(const float* x, const float* w, const float* bias, float* y, long m, long n, long k, Act act);

struct Heads {  // [B, H, L, D] with any strides but the last, which is 1
  const float* data;
  long batch, head, row;
};

struct Attention {
  long b, h, groups, length, width;
  float scale;
  bool causal;
  long window;  // 0 for none

  // Scores of one block of queries are held at a time. Padding queries give zeros: nobody may read them.
  void operator()(Heads q, Heads k, Heads v, const int32_t* real, float* out) const;

 private:
  struct Side {  // keys or values of one head [L, D], packed where there are tiles
    const float* data;
    long row;
    const float* panels;
  };

  void block(
      const float* q, long q_row, Side k, Side v, const int32_t* keep, float* out, long first, long last) const;
  float weigh(float* scores, long query, long low, long high, const int32_t* keep, bool holes) const;
};

}  // namespace theodolite
