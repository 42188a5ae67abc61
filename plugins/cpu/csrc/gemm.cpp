#include "gemm.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace theodolite {

namespace {

enum class Isa { none, avx2, avx512, avx512_bf16 };

Isa newest_allowed() {
  const char* given = std::getenv("THEODOLITE_MAX_ISA");
  std::string name = given == nullptr ? "" : given;
  if (name.empty() || name == "avx512_bf16") return Isa::avx512_bf16;
  if (name == "avx512") return Isa::avx512;
  if (name == "avx2") return Isa::avx2;
  if (name == "none") return Isa::none;
  throw std::invalid_argument("THEODOLITE_MAX_ISA is " + name + ", not none, avx2, avx512 or avx512_bf16");
}

}  // namespace

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
constexpr long SHALLOW = 128;
constexpr long APART = FEW * 2 * PANEL;  // numbers of the largest tile, or of few rows

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
      const float* from = v + i * v_row + first;
      float* to = panels + first * k + i * PANEL;
      if (wide == PANEL) {
        std::memcpy(to, from, PANEL * sizeof(float));  // of a known size, so no call
      } else {
        std::fill(std::copy_n(from, wide, to), to + PANEL, 0.0f);
      }
    }
  }
}

// y += sums, or y = sums for the first of them
AVX2 static void put(const float* sums, long sums_row, float* y, long y_row, long rows, long columns, bool add) {
  for (long r = 0; r < rows; r++) {
    for (long i = 0; i < columns; i++) {
      y[r * y_row + i] = add ? y[r * y_row + i] + sums[r * sums_row + i] : sums[r * sums_row + i];
    }
  }
}

// A long sum is one of parts: more exact than going on and on. The parts are the same for few rows and for many, so that
// a row's numbers do not depend on the others.
void multiply(
    const Tiles& tiles, const float* x, long x_row, const float* panels, long panel_step, float* y, long y_row, long m,
    long columns, long k) {
  const long tile = tiles.panels * PANEL;
  // Rows from `top` and columns from `first` on, over `deep` words from `start` on, `piece` of them at a time; what comes
  // after them is called up meanwhile.
  auto part = [&](long top, long high, long first, long start, long deep, long piece, const float* after) {
    float apart[APART];
    long wide = std::min(tile, columns - first);
    bool direct = start == 0 && wide % PANEL == 0;
    Block block{};
    block.x_row = x_row, block.panel_step = panel_step, block.y_row = direct ? y_row : tile;
    for (long at = start; at < start + deep; at += piece) {
      block.k = std::min(piece, start + deep - at), block.more = at > start;
      block.panel = panels + first / PANEL * panel_step + at * PANEL;
      for (long r = 0; r < high; r += tiles.rows) {
        block.next = r > 0 ? nullptr : at + piece < start + deep ? block.panel + piece * PANEL : after;
        block.x = x + (top + r) * x_row + at;
        block.y = (direct ? y + top * y_row + first : apart) + r * block.y_row;
        tiles.compute(block, std::min(tiles.rows, high - r), (wide + PANEL - 1) / PANEL);
      }
    }
    if (!direct) put(apart, tile, y + top * y_row + first, y_row, high, wide, start > 0);
  };
  auto following = [&](long first) {
    return first + tile < columns ? panels + (first + tile) / PANEL * panel_step : nullptr;
  };
  long parts = std::max(1L, (k + tiles.depth - 1) / tiles.depth), depth = (k + parts - 1) / parts;
  if (m <= FEW) {  // bound by memory: panel after panel, in pieces so small that loading never pauses for long
    for (long first = 0; first < columns; first += tile) {
      for (long start = 0; start < k; start += depth) {
        const float* rest = panels + first / PANEL * panel_step + (start + depth) * PANEL;
        part(0, m, first, start, std::min(depth, k - start), SHALLOW, start + depth < k ? rest : following(first));
      }
    }
    return;
  }
  for (long start = 0; start < k; start += depth) {
    long deep = std::min(depth, k - start);
    for (long first = 0; first < columns; first += tile) {
      const float* after = following(first) == nullptr ? nullptr : following(first) + start * PANEL;
      for (long top = 0; top < m; top += tiles.rows) {
        part(top, std::min(tiles.rows, m - top), first, start, deep, deep, top == 0 ? after : nullptr);
      }
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
