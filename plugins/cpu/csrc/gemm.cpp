#include "gemm.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))

namespace theodolite {

namespace {

constexpr long LANES = 8;
constexpr long DEPTH = 384;  // a panel this deep (24 kB) stays in the first cache while all rows of a block pass by

// ROWS x 16 sums in registers, over k; added to y where `more`.
template <int ROWS>
AVX2 inline __attribute__((always_inline)) void tile(
    const float* x, long x_row, const float* b, long b_row, float* y, long y_row, long k, bool more) {
  __m256 sums[ROWS][2];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
    sums[r][0] = more ? _mm256_loadu_ps(y + r * y_row) : _mm256_setzero_ps();
    sums[r][1] = more ? _mm256_loadu_ps(y + r * y_row + LANES) : _mm256_setzero_ps();
  }
  for (long i = 0; i < k; i++) {
    __m256 left = _mm256_loadu_ps(b), right = _mm256_loadu_ps(b + LANES);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      __m256 value = _mm256_broadcast_ss(x + r * x_row + i);
      sums[r][0] = _mm256_fmadd_ps(value, left, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(value, right, sums[r][1]);
    }
    b += b_row;
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
    _mm256_storeu_ps(y + r * y_row, sums[r][0]);
    _mm256_storeu_ps(y + r * y_row + LANES, sums[r][1]);
  }
}

AVX2 void some_rows(
    const float* x, long x_row, const float* b, long b_row, float* y, long y_row, long rows, long k, bool more) {
  switch (rows) {
    case 1: return tile<1>(x, x_row, b, b_row, y, y_row, k, more);
    case 2: return tile<2>(x, x_row, b, b_row, y, y_row, k, more);
    case 3: return tile<3>(x, x_row, b, b_row, y, y_row, k, more);
    case 4: return tile<4>(x, x_row, b, b_row, y, y_row, k, more);
    case 5: return tile<5>(x, x_row, b, b_row, y, y_row, k, more);
    default: return tile<6>(x, x_row, b, b_row, y, y_row, k, more);
  }
}

AVX2 inline float total(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// ROWS x COLUMNS dot products at once, so that every number loaded is used several times.
template <int ROWS, int COLUMNS>
AVX2 inline __attribute__((always_inline)) void dots(const float* x, const float* w, float* y, long k, long y_row) {
  __m256 sums[ROWS][COLUMNS];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
    for (int c = 0; c < COLUMNS; c++) sums[r][c] = _mm256_setzero_ps();
  }
  long i = 0;
  for (; i + LANES <= k; i += LANES) {
    __m256 columns[COLUMNS];
#pragma GCC unroll 2
    for (int c = 0; c < COLUMNS; c++) columns[c] = _mm256_loadu_ps(w + c * k + i);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      __m256 row = _mm256_loadu_ps(x + r * k + i);
#pragma GCC unroll 2
      for (int c = 0; c < COLUMNS; c++) sums[r][c] = _mm256_fmadd_ps(row, columns[c], sums[r][c]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
    for (int c = 0; c < COLUMNS; c++) {
      float sum = total(sums[r][c]);
      for (long j = i; j < k; j++) sum += x[r * k + j] * w[c * k + j];
      y[r * y_row + c] = sum;
    }
  }
}

template <int COLUMNS>
AVX2 void dot_rows(const float* x, const float* w, float* y, long m, long k, long y_row) {
  long parts = (m + TILE - 1) / TILE;  // 10 rows go as 5 and 5, not as 6 and 4
  for (long r = 0, part = 0; part < parts; part++) {
    long rows = (m - r + parts - part - 1) / (parts - part);
    const float* from = x + r * k;
    float* to = y + r * y_row;
    switch (rows) {
      case 1: dots<1, COLUMNS>(from, w, to, k, y_row); break;
      case 2: dots<2, COLUMNS>(from, w, to, k, y_row); break;
      case 3: dots<3, COLUMNS>(from, w, to, k, y_row); break;
      case 4: dots<4, COLUMNS>(from, w, to, k, y_row); break;
      case 5: dots<5, COLUMNS>(from, w, to, k, y_row); break;
      default: dots<6, COLUMNS>(from, w, to, k, y_row); break;
    }
    r += rows;
  }
}

// 8 x 8 numbers at w, turned.
AVX2 inline void turn(const float* w, long w_row, float* out) {
  __m256 a[LANES], b[LANES];
#pragma GCC unroll 8
  for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(w + i * w_row);
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
    b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
    a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xEE);
    a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
    a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xEE);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(out + i * PANEL, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * PANEL, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
  }
}

}  // namespace

bool tiles() {
  static const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      !__builtin_cpu_supports("avx512f");
  return usable;
}

AVX2 void pack_panel(const float* w, long w_row, long n, long k, long first, float* panel) {
  long i = 0;
  if (first + PANEL <= n) {
    const float* from = w + first * w_row;
    for (; i + LANES <= k; i += LANES) {
      turn(from + i, w_row, panel + i * PANEL);
      turn(from + LANES * w_row + i, w_row, panel + i * PANEL + LANES);
    }
  }
  for (; i < k; i++) {
    for (long c = 0; c < PANEL; c++) {
      panel[i * PANEL + c] = first + c < n ? w[(first + c) * w_row + i] : 0.0f;
    }
  }
}

AVX2 void multiply(
    const float* x, long x_row, const float* panels, long panel_step, long panel_row, float* y, long y_row, long m,
    long columns, long k) {
  long parts = std::max(1L, (k + DEPTH - 1) / DEPTH), depth = (k + parts - 1) / parts;
  for (long start = 0; start < k; start += depth) {
    long deep = std::min(depth, k - start);
    bool more = start > 0;
    for (long first = 0; first < columns; first += PANEL) {
      const float* panel = panels + first / PANEL * panel_step + start * panel_row;
      long wide = std::min(PANEL, columns - first);
      for (long r = 0; r < m; r += TILE) {
        long rows = std::min(TILE, m - r);
        float* to = y + r * y_row + first;
        const float* from = x + r * x_row + start;
        if (wide == PANEL) {
          some_rows(from, x_row, panel, panel_row, to, y_row, rows, deep, more);
          continue;
        }
        float edge[TILE * PANEL] = {};
        for (long i = 0; more && i < rows; i++) std::copy_n(to + i * y_row, wide, edge + i * PANEL);
        some_rows(from, x_row, panel, panel_row, edge, PANEL, rows, deep, more);
        for (long i = 0; i < rows; i++) std::copy_n(edge + i * PANEL, wide, to + i * y_row);
      }
    }
  }
}

AVX2 void few_rows(const float* x, const float* w, float* y, long m, long n, long k, long y_row) {
  long c = 0;
  for (; c + 2 <= n; c += 2) dot_rows<2>(x, w + c * k, y + c, m, k, y_row);
  if (c < n) dot_rows<1>(x, w + c * k, y + c, m, k, y_row);
}

}  // namespace theodolite

#else

namespace theodolite {

bool tiles() {
  return false;
}

void pack_panel(const float*, long, long, long, long, float*) {}
void multiply(const float*, long, const float*, long, long, float*, long, long, long, long) {}
void few_rows(const float*, const float*, float*, long, long, long, long) {}

}  // namespace theodolite

#endif
