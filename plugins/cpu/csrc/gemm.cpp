#include "gemm.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))

namespace theodolite {

namespace {

constexpr long LANES = 8;
constexpr long FEW = 24, SHALLOW = 64;
constexpr long DEPTH = 384;  // a panel this deep (24 kB) stays in the first cache while all rows of a block pass by

// ROWS x 16 sums in registers, over k; added to y where `more`. The panel at `next`, if any, is called up meanwhile.
template <int ROWS>
AVX2 void tile(
    const float* x, long x_row, const float* panel, const float* next, float* y, long y_row, long k, bool more) {
  __m256 sums[ROWS][2];
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
    sums[r][0] = more ? _mm256_loadu_ps(y + r * y_row) : _mm256_setzero_ps();
    sums[r][1] = more ? _mm256_loadu_ps(y + r * y_row + LANES) : _mm256_setzero_ps();
  }
  for (long i = 0; i < k; i++) {
    if (next != nullptr) _mm_prefetch(next + i * PANEL, _MM_HINT_T1);
    __m256 left = _mm256_loadu_ps(panel), right = _mm256_loadu_ps(panel + LANES);
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
      __m256 value = _mm256_broadcast_ss(x + r * x_row + i);
      sums[r][0] = _mm256_fmadd_ps(value, left, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(value, right, sums[r][1]);
    }
    panel += PANEL;
  }
#pragma GCC unroll 6
  for (int r = 0; r < ROWS; r++) {
    _mm256_storeu_ps(y + r * y_row, sums[r][0]);
    _mm256_storeu_ps(y + r * y_row + LANES, sums[r][1]);
  }
}

// The full tile is nearly all of the work, and bound by how many instructions the processor can take in: compilers add
// pointers to the twenty that a step needs, or move a register to memory and back. So its loop is written out, four
// steps at a time.
#define ROW(address, left, right)                 \
  "vbroadcastss " address ", %%ymm2\n\t"          \
  "vfmadd231ps %%ymm0, %%ymm2, %%" left "\n\t"    \
  "vfmadd231ps %%ymm1, %%ymm2, %%" right "\n\t"
#define STEP(i, low, high)                        \
  "vmovups " low "(%[panel]), %%ymm0\n\t"         \
  "vmovups " high "(%[panel]), %%ymm1\n\t"        \
  ROW(i "(%[x])", "ymm4", "ymm5")                 \
  ROW(i "(%[x], %[step])", "ymm6", "ymm7")        \
  ROW(i "(%[x], %[step], 2)", "ymm8", "ymm9")     \
  ROW(i "(%[lower])", "ymm10", "ymm11")           \
  ROW(i "(%[lower], %[step])", "ymm12", "ymm13")  \
  ROW(i "(%[lower], %[step], 2)", "ymm14", "ymm15")
#define FETCH(i) "prefetcht1 " i "(%[next])\n\t"
#define STEPS(loop, fetch_0, fetch_1, fetch_2, fetch_3, advance)                                        \
  ".p2align 5\n" loop ":\n\t"                                                                           \
  fetch_0 STEP("0", "0", "32") fetch_1 STEP("4", "64", "96")                                            \
  fetch_2 STEP("8", "128", "160") fetch_3 STEP("12", "192", "224")                                      \
  advance "add $256, %[panel]\n\tadd $16, %[x]\n\tadd $16, %[lower]\n\tdec %[fours]\n\tjnz " loop "b\n\t"
#define EACH(what) what("4", "5") what("6", "7") what("8", "9") what("10", "11") what("12", "13") what("14", "15")
#define LOAD(left, right) "vmovups (%[y]), %%ymm" left "\n\tvmovups 32(%[y]), %%ymm" right "\n\tadd %[y_step], %[y]\n\t"
#define STORE(left, right) \
  "vmovups %%ymm" left ", (%[y])\n\tvmovups %%ymm" right ", 32(%[y])\n\tadd %[y_step], %[y]\n\t"
#define ZERO(left, right) \
  "vxorps %%ymm" left ", %%ymm" left ", %%ymm" left "\n\tvxorps %%ymm" right ", %%ymm" right ", %%ymm" right "\n\t"

template <>
AVX2 void tile<TILE>(
    const float* x, long x_row, const float* panel, const float* next, float* y, long y_row, long k, bool more) {
  const float *lower = x + 3 * x_row, *start = y;
  long step = x_row * sizeof(float), y_step = y_row * sizeof(float), fours = k / 4, rest = k % 4;
  asm volatile(
      "test %[more], %[more]\n\t"
      "jz 1f\n\t"
      EACH(LOAD)
      "mov %[start], %[y]\n\t"
      "jmp 2f\n"
      "1:\n\t"
      EACH(ZERO)
      "2:\n\t"
      "test %[fours], %[fours]\n\t"
      "jz 5f\n\t"
      "test %[next], %[next]\n\t"
      "jz 4f\n\t"
      STEPS("3", FETCH("0"), FETCH("64"), FETCH("128"), FETCH("192"), "add $256, %[next]\n\t")
      "jmp 5f\n\t"
      STEPS("4", "", "", "", "", "")
      "5:\n\t"
      "test %[rest], %[rest]\n\t"
      "jz 7f\n"
      "6:\n\t"
      STEP("0", "0", "32")
      "add $64, %[panel]\n\t"
      "add $4, %[x]\n\t"
      "add $4, %[lower]\n\t"
      "dec %[rest]\n\t"
      "jnz 6b\n"
      "7:\n\t"
      EACH(STORE)
      "vzeroupper\n\t"
      : [x] "+r"(x), [lower] "+r"(lower), [panel] "+r"(panel), [next] "+r"(next), [y] "+r"(y), [fours] "+r"(fours),
        [rest] "+r"(rest)
      : [step] "r"(step), [y_step] "r"(y_step), [start] "m"(start), [more] "r"(static_cast<int>(more))
      : "cc", "memory", "ymm0", "ymm1", "ymm2", "ymm3", "ymm4", "ymm5", "ymm6", "ymm7", "ymm8", "ymm9", "ymm10", "ymm11",
        "ymm12", "ymm13", "ymm14", "ymm15");
}

#undef ROW
#undef STEP
#undef FETCH
#undef STEPS
#undef EACH
#undef LOAD
#undef STORE
#undef ZERO

void some_rows(
    const float* x, long x_row, const float* panel, const float* next, float* y, long y_row, long rows, long k,
    bool more) {
  switch (rows) {
    case 1: return tile<1>(x, x_row, panel, next, y, y_row, k, more);
    case 2: return tile<2>(x, x_row, panel, next, y, y_row, k, more);
    case 3: return tile<3>(x, x_row, panel, next, y, y_row, k, more);
    case 4: return tile<4>(x, x_row, panel, next, y, y_row, k, more);
    case 5: return tile<5>(x, x_row, panel, next, y, y_row, k, more);
    default: return tile<TILE>(x, x_row, panel, next, y, y_row, k, more);
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
    const float* x, long x_row, const float* panels, long panel_step, float* y, long y_row, long m, long columns,
    long k) {
  // Columns `first` on, over `deep` numbers from `start` on; what comes after them is called up meanwhile.
  auto part = [&](long first, long start, long deep, const float* after) {
    const float* panel = panels + first / PANEL * panel_step + start * PANEL;
    long wide = std::min(PANEL, columns - first);
    bool more = start > 0;
    for (long r = 0; r < m; r += TILE) {
      const float* next = r == 0 ? after : nullptr;
      long rows = std::min(TILE, m - r);
      float* to = y + r * y_row + first;
      const float* from = x + r * x_row + start;
      if (wide == PANEL) {
        some_rows(from, x_row, panel, next, to, y_row, rows, deep, more);
        continue;
      }
      float edge[TILE * PANEL] = {};
      for (long i = 0; more && i < rows; i++) std::copy_n(to + i * y_row, wide, edge + i * PANEL);
      some_rows(from, x_row, panel, next, edge, PANEL, rows, deep, more);
      for (long i = 0; i < rows; i++) std::copy_n(edge + i * PANEL, wide, to + i * y_row);
    }
  };
  auto following = [&](long first) {
    return first + PANEL < columns ? panels + (first / PANEL + 1) * panel_step : nullptr;
  };
  if (m <= FEW) {  // bound by memory: panel after panel, in pieces so small that loading never pauses for long
    for (long first = 0; first < columns; first += PANEL) {
      for (long start = 0; start < k; start += SHALLOW) {
        const float* rest = panels + first / PANEL * panel_step + (start + SHALLOW) * PANEL;
        part(first, start, std::min(SHALLOW, k - start), start + SHALLOW < k ? rest : following(first));
      }
    }
    return;
  }
  long parts = std::max(1L, (k + DEPTH - 1) / DEPTH), depth = (k + parts - 1) / parts;
  for (long start = 0; start < k; start += depth) {
    for (long first = 0; first < columns; first += PANEL) {
      const float* after = following(first);
      part(first, start, std::min(depth, k - start), after == nullptr ? nullptr : after + start * PANEL);
    }
  }
}

}  // namespace theodolite

#else

namespace theodolite {

bool tiles() {
  return false;
}

void pack_panel(const float*, long, long, long, long, float*) {}
void pack_columns(const float*, long, long, long, float*) {}
void multiply(const float*, long, const float*, long, float*, long, long, long, long) {}

}  // namespace theodolite

#endif
