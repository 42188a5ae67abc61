// For processors with AVX2 and FMA: six rows of one panel fill the 16 registers.
#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2,fma")))

namespace theodolite {

namespace {

constexpr int ROWS = 6, PANELS = 1;
constexpr long DEPTH = 384;  // a panel of 24 kB stays in the first cache
constexpr long LANES = 8;

template <int R>
AVX2 void tile(const Block& block) {
  const float *x = block.x, *panel = block.panel, *next = block.next;
  float* y = block.y;
  const long x_row = block.x_row, y_row = block.y_row;
  __m256 sums[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) {
    sums[r][0] = block.more ? _mm256_loadu_ps(y + r * y_row) : _mm256_setzero_ps();
    sums[r][1] = block.more ? _mm256_loadu_ps(y + r * y_row + LANES) : _mm256_setzero_ps();
  }
  for (long i = 0; i < block.k; i++) {
    if (next != nullptr) _mm_prefetch(next + i * PANEL, _MM_HINT_T1);
    __m256 left = _mm256_loadu_ps(panel), right = _mm256_loadu_ps(panel + LANES);
#pragma GCC unroll 6
    for (int r = 0; r < R; r++) {
      __m256 value = _mm256_broadcast_ss(x + r * x_row + i);
      sums[r][0] = _mm256_fmadd_ps(value, left, sums[r][0]);
      sums[r][1] = _mm256_fmadd_ps(value, right, sums[r][1]);
    }
    panel += PANEL;
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; r++) {
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
AVX2 void tile<ROWS>(const Block& block) {
  const float *x = block.x, *lower = x + 3 * block.x_row, *panel = block.panel, *next = block.next, *start = block.y;
  float* y = block.y;
  long step = block.x_row * sizeof(float), y_step = block.y_row * sizeof(float), fours = block.k / 4;
  long rest = block.k % 4;
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
      : [step] "r"(step), [y_step] "r"(y_step), [start] "m"(start), [more] "r"(static_cast<int>(block.more))
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

void compute(const Block& block, long rows, long) {
  switch (rows) {
    case 1: return tile<1>(block);
    case 2: return tile<2>(block);
    case 3: return tile<3>(block);
    case 4: return tile<4>(block);
    case 5: return tile<5>(block);
    default: return tile<ROWS>(block);
  }
}

}  // namespace

const Tiles* avx2_tiles() {
  static const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const Tiles tiles{ROWS, PANELS, DEPTH, compute};
  return usable ? &tiles : nullptr;
}

}  // namespace theodolite

#else

namespace theodolite {

const Tiles* avx2_tiles() {
  return nullptr;
}

}  // namespace theodolite

#endif
