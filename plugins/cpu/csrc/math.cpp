#include "math.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace theodolite {

namespace {

template <Act act>
INLINE void finish_rows(float* y, const float* bias, long rows, long width, long stride) {
  for (long r = 0; r < rows; r++) {
    float* row = y + r * stride;
    if (bias != nullptr) {
      for (long i = 0; i < width; i++) {
        row[i] = apply<act>(row[i] + bias[i]);
      }
    } else {
      for (long i = 0; i < width; i++) {
        row[i] = apply<act>(row[i]);
      }
    }
  }
}

template <Act act>
INLINE void activate_all(const float* x, float* out, long count) {
  for (long i = 0; i < count; i++) {
    out[i] = apply<act>(x[i]);
  }
}

template <Act act>
INLINE void gate_all(const float* gate, const float* up, float* out, long count) {
  for (long i = 0; i < count; i++) {
    out[i] = apply<act>(gate[i]) * up[i];
  }
}

#if defined(__x86_64__)

#define AVX2 __attribute__((target("avx2,fma")))
constexpr long LANES = 8, TILE_ROWS = 4, TILE_COLUMNS = 2;

AVX2 inline float total(__m256 v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

// ROWS x COLUMNS dot products at once, so that every number loaded is used several times.
template <long ROWS, long COLUMNS>
AVX2 inline void tile(const float* x, const float* w, float* y, long k, long stride) {
  __m256 sums[ROWS][COLUMNS];
#pragma GCC unroll 4
  for (long r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
    for (long c = 0; c < COLUMNS; c++) sums[r][c] = _mm256_setzero_ps();
  }
  long i = 0;
  for (; i + LANES <= k; i += LANES) {
    __m256 columns[COLUMNS];
#pragma GCC unroll 2
    for (long c = 0; c < COLUMNS; c++) columns[c] = _mm256_loadu_ps(w + c * k + i);
#pragma GCC unroll 4
    for (long r = 0; r < ROWS; r++) {
      __m256 row = _mm256_loadu_ps(x + r * k + i);
#pragma GCC unroll 2
      for (long c = 0; c < COLUMNS; c++) sums[r][c] = _mm256_fmadd_ps(row, columns[c], sums[r][c]);
    }
  }
#pragma GCC unroll 4
  for (long r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
    for (long c = 0; c < COLUMNS; c++) {
      float sum = total(sums[r][c]);
      for (long j = i; j < k; j++) sum += x[r * k + j] * w[c * k + j];
      y[r * stride + c] = sum;
    }
  }
}

template <long COLUMNS>
AVX2 inline void columns(const float* x, const float* w, float* y, long m, long k, long stride) {
  long r = 0;
  for (; r + TILE_ROWS <= m; r += TILE_ROWS) {
    tile<TILE_ROWS, COLUMNS>(x + r * k, w, y + r * stride, k, stride);
  }
  for (; r < m; r++) {
    tile<1, COLUMNS>(x + r * k, w, y + r * stride, k, stride);
  }
}

AVX2 void few_rows_avx2(const float* x, const float* w, float* y, long m, long n, long k, long stride) {
  long c = 0;
  for (; c + TILE_COLUMNS <= n; c += TILE_COLUMNS) {
    columns<TILE_COLUMNS>(x, w + c * k, y + c, m, k, stride);
  }
  for (; c < n; c++) {
    columns<1>(x, w + c * k, y + c, m, k, stride);
  }
}

#endif

}  // namespace

bool few_rows(const float* x, const float* w, float* y, long m, long n, long k, long stride) {
#if defined(__x86_64__)
  static const bool usable = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (usable) {
    few_rows_avx2(x, w, y, m, n, k, stride);
    return true;
  }
#endif
  return false;
}

#define EACH(call)                                                                     \
  switch (act) {                                                                       \
    case Act::none: call(Act::none); break;                                            \
    case Act::gelu: call(Act::gelu); break;                                            \
    case Act::gelu_tanh: call(Act::gelu_tanh); break;                                  \
    case Act::silu: call(Act::silu); break;                                            \
    case Act::relu: call(Act::relu); break;                                            \
    case Act::tanh: call(Act::tanh); break;                                            \
    case Act::quick_gelu: call(Act::quick_gelu); break;                                \
  }

WIDE void finish(float* y, const float* bias, long rows, long width, long stride, Act act) {
  if (bias == nullptr && act == Act::none) {
    return;
  }
#define CALL(which) finish_rows<which>(y, bias, rows, width, stride)
  EACH(CALL)
#undef CALL
}

WIDE void activate(const float* x, float* out, long count, Act act) {
#define CALL(which) activate_all<which>(x, out, count)
  EACH(CALL)
#undef CALL
}

WIDE void gate(const float* g, const float* up, float* out, long count, Act act) {
#define CALL(which) gate_all<which>(g, up, out, count)
  EACH(CALL)
#undef CALL
}

WIDE void layer_norm(
    const float* x, const float* residual, const float* weight, const float* bias, float* out, long rows, long width,
    float eps) {
  for (long r = 0; r < rows; r++) {
    const float* from = x + r * width;
    float* to = out + r * width;
    float sum = 0.0f;
    if (residual != nullptr) {
      const float* other = residual + r * width;
      for (long i = 0; i < width; i++) {
        float v = from[i] + other[i];
        to[i] = v;
        sum += v;
      }
      from = to;
    } else {
      for (long i = 0; i < width; i++) {
        sum += from[i];
      }
    }
    float mean = sum / width;
    float squares = 0.0f;
    for (long i = 0; i < width; i++) {
      float d = from[i] - mean;
      squares += d * d;
    }
    float scale = 1.0f / std::sqrt(squares / width + eps);
    if (weight != nullptr && bias != nullptr) {
      for (long i = 0; i < width; i++) {
        to[i] = (from[i] - mean) * scale * weight[i] + bias[i];
      }
    } else {
      for (long i = 0; i < width; i++) {
        float v = (from[i] - mean) * scale;
        v = weight != nullptr ? v * weight[i] : v;
        to[i] = bias != nullptr ? v + bias[i] : v;
      }
    }
  }
}

WIDE void rms_norm(const float* x, const float* weight, float* out, long rows, long width, float eps) {
  for (long r = 0; r < rows; r++) {
    const float* from = x + r * width;
    float* to = out + r * width;
    float squares = 0.0f;
    for (long i = 0; i < width; i++) {
      squares += from[i] * from[i];
    }
    float scale = 1.0f / std::sqrt(squares / width + eps);
    for (long i = 0; i < width; i++) {
      to[i] = from[i] * scale * (weight != nullptr ? weight[i] : 1.0f);
    }
  }
}

WIDE void softmax(float* x, long width) {
  float top = x[0];
  for (long i = 1; i < width; i++) {
    top = x[i] > top ? x[i] : top;
  }
  float sum = 0.0f;
  for (long i = 0; i < width; i++) {
    float e = fast_exp(x[i] - top);
    x[i] = e;
    sum += e;
  }
  float scale = 1.0f / sum;
  for (long i = 0; i < width; i++) {
    x[i] *= scale;
  }
}

WIDE void rotate(const float* x, const float* cos, const float* sin, float* out, long half) {
  for (long i = 0; i < half; i++) {
    float a = x[i], b = x[i + half];
    out[i] = a * cos[i] - b * sin[i];
    out[i + half] = b * cos[i] + a * sin[i];
  }
}

}  // namespace theodolite
