// For processors with AVX-512. With 32 registers a compiler keeps all sums and still has room for what it reads, and one
// broadcast serves two panels. The instructions for bfloat16 compute twice the products at the same pace.
#include "tiles.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>
#include <cstring>
#include <utility>

// One target for both numbers: an instruction for bfloat16 stands only where it is asked for by name.
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) static inline

namespace theodolite {

namespace {

constexpr int ROWS = 14, PANELS = 2;
constexpr long DEPTH = 512;  // two panels of 32 kB stay in the second cache

struct Float {
  AVX512_INLINE __m512 add(__m512 sum, __m512 x, __m512 w) {
    return _mm512_fmadd_ps(x, w, sum);
  }
};

struct Bfloat {
  AVX512_INLINE __m512 add(__m512 sum, __m512 x, __m512 w) {
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
  }
};

template <class Number, int R, int P>
AVX512 void tile(const Block& block) {
  const float *x = block.x, *panel = block.panel, *next = block.next;
  const long x_row = block.x_row, step = block.panel_step;
  __m512 sums[R][P];
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
      sums[r][p] = block.more ? _mm512_loadu_ps(block.y + r * block.y_row + p * PANEL) : _mm512_setzero_ps();
    }
  }
  for (long i = 0; i < block.k; i++) {
    __m512 w[P];
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) {
      w[p] = _mm512_loadu_ps(panel + p * step + i * PANEL);
      if (next != nullptr) _mm_prefetch(next + p * step + i * PANEL, _MM_HINT_T1);
    }
#pragma GCC unroll 14
    for (int r = 0; r < R; r++) {
      __m512 value = _mm512_set1_ps(x[r * x_row + i]);
#pragma GCC unroll 2
      for (int p = 0; p < P; p++) sums[r][p] = Number::add(sums[r][p], value, w[p]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; r++) {
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) _mm512_storeu_ps(block.y + r * block.y_row + p * PANEL, sums[r][p]);
  }
}

// tile<Number, rows, panels> at [(rows - 1) * PANELS + panels - 1].
template <class Number, std::size_t... I>
constexpr std::array<void (*)(const Block&), sizeof...(I)> all(std::index_sequence<I...>) {
  return {tile<Number, I / PANELS + 1, I % PANELS + 1>...};
}

template <class Number>
void compute(const Block& block, long rows, long panels) {
  static constexpr auto sizes = all<Number>(std::make_index_sequence<ROWS * PANELS>());
  sizes[(rows - 1) * PANELS + panels - 1](block);
}

}  // namespace

const Tiles* avx512_tiles() {
  static const bool usable = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl");
  static const Tiles float_tiles{ROWS, PANELS, DEPTH, compute<Float>};
  return usable ? &float_tiles : nullptr;
}

const Tiles* avx512_bf16_tiles() {
  static const bool usable = avx512_tiles() != nullptr && __builtin_cpu_supports("avx512bf16");
  static const Tiles bfloat_tiles{ROWS, PANELS, DEPTH, compute<Bfloat>};
  return usable ? &bfloat_tiles : nullptr;
}

AVX512 void to_bf16(const float* x, float* words, long count) {
  long i = 0;
  for (; i + 32 <= count; i += 32) {
    __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(x + i + 16), _mm512_loadu_ps(x + i));
    _mm512_storeu_si512(words + i / 2, (__m512i)pairs);
  }
  if (i == count) return;
  float rest[32] = {};
  std::memcpy(rest, x + i, (count - i) * sizeof(float));
  __m512bh pairs = _mm512_cvtne2ps_pbh(_mm512_loadu_ps(rest + 16), _mm512_loadu_ps(rest));
  _mm512_mask_storeu_ps(words + i / 2, static_cast<__mmask16>((1u << ((count - i + 1) / 2)) - 1), (__m512)pairs);
}

}  // namespace theodolite

#else

namespace theodolite {

const Tiles* avx512_tiles() {
  return nullptr;
}

const Tiles* avx512_bf16_tiles() {
  return nullptr;
}

void to_bf16(const float*, float*, long) {}

}  // namespace theodolite

#endif
