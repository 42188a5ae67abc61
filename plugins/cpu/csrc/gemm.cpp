#include "gemm.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace theodolite {

namespace {

enum class Isa { none, avx2, avx512, avx512_bf16 };

}  // namespace

Isa newest_allowed() {
  const char* given = std::getenv("THEODOLITE_MAX_ISA");
  std::string name = given == nullptr ? "" : given;
  if (name.empty() || name == "avx512_bf16") return Isa::avx512_bf16;
  if (name == "avx512") return Isa::avx512;
  if (name == "avx2") return Isa::avx2;
  if (name == "none") return Isa::none;
  throw std::invalid_argument("THEODOLITE_MAX_ISA is " + name + ", not none, avx2, avx512 or avx512_bf16");
}

const Tiles* tiles() {
  static const Isa isa = newest_allowed();
  if (isa >= Isa::avx512 && avx512_tiles() != nullptr) return avx512_tiles();
  return isa >= Isa::avx2 ? avx2_tiles() : nullptr;
}

const Tiles* bf16_tiles() {
  static const Isa isa = newest_allowed();
  return isa >= Isa::avx512_bf16 ? avx512_bf16_tiles() : nullptr;
}

}  // namespace theodolite

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))

namespace theodolite {

namespace {

constexpr long LANES = 8;
constexpr long FEW = 24, SHALLOW = 64;
constexpr long EDGE = 14 * 2 * PANEL;  // numbers of the largest tile

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

void pack_columns(const float* v, long v_row, long k, long n, float* panels) {
  for (long first = 0; first < n; first += PANEL) {
    long wide = std::min(PANEL, n - first);
    for (long i = 0; i < k; i++) {
      float* to = panels + first * k + i * PANEL;
      std::copy_n(v + i * v_row + first, wide, to);
      std::fill_n(to + wide, PANEL - wide, 0.0f);
    }
  }
}

void multiply(
    const Tiles& tiles, const float* x, long x_row, const float* panels, long panel_step, float* y, long y_row, long m,
    long columns, long k) {
  const long tile = tiles.panels * PANEL;
  // Columns `first` on, over `deep` words from `start` on; what comes after them is called up meanwhile.
  auto part = [&](long first, long start, long deep, const float* after) {
    Block block{};
    block.x_row = x_row, block.panel_step = panel_step, block.k = deep, block.more = start > 0;
    block.panel = panels + first / PANEL * panel_step + start * PANEL;
    long wide = std::min(tile, columns - first), across = (wide + PANEL - 1) / PANEL;
    for (long r = 0; r < m; r += tiles.rows) {
      long rows = std::min(tiles.rows, m - r);
      float* to = y + r * y_row + first;
      block.next = r == 0 ? after : nullptr;
      block.x = x + r * x_row + start;
      if (wide % PANEL == 0) {
        block.y = to, block.y_row = y_row;
        tiles.compute(block, rows, across);
        continue;
      }
      float edge[EDGE];
      block.y = edge, block.y_row = tile;
      for (long i = 0; block.more && i < rows; i++) std::copy_n(to + i * y_row, wide, edge + i * tile);
      tiles.compute(block, rows, across);
      for (long i = 0; i < rows; i++) std::copy_n(edge + i * tile, wide, to + i * y_row);
    }
  };
  auto following = [&](long first) {
    return first + tile < columns ? panels + (first + tile) / PANEL * panel_step : nullptr;
  };
  if (m <= FEW) {  // bound by memory: panel after panel, in pieces so small that loading never pauses for long
    for (long first = 0; first < columns; first += tile) {
      for (long start = 0; start < k; start += SHALLOW) {
        const float* rest = panels + first / PANEL * panel_step + (start + SHALLOW) * PANEL;
        part(first, start, std::min(SHALLOW, k - start), start + SHALLOW < k ? rest : following(first));
      }
    }
    return;
  }
  long parts = std::max(1L, (k + tiles.depth - 1) / tiles.depth), depth = (k + parts - 1) / parts;
  for (long start = 0; start < k; start += depth) {
    for (long first = 0; first < columns; first += tile) {
      const float* after = following(first);
      part(first, start, std::min(depth, k - start), after == nullptr ? nullptr : after + start * PANEL);
    }
  }
}

}  // namespace theodolite

#else

namespace theodolite {

void pack_panel(const float*, long, long, long, long, float*) {}
void pack_columns(const float*, long, long, long, float*) {}
void multiply(const Tiles&, const float*, long, const float*, long, float*, long, long, long, long) {}

}  // namespace theodolite

#endif
