// Elementwise functions and row reductions in float32. Each loop is compiled for several instruction sets and chosen at
// run time. Not-a-number goes through every function, so that a bad weight is seen at the end.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// Chosen by what a processor can do, not by its maker's name for it ("arch=haswell" is never taken on AMD).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define WIDE __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#endif
#else
#define WIDE
#endif
#define INLINE inline __attribute__((always_inline))

namespace theodolite {

enum class Act { none = 0, gelu = 1, gelu_tanh = 2, silu = 3, relu = 4, tanh = 5, quick_gelu = 6 };

// exp by a polynomial on [-ln 2 / 2, ln 2 / 2] (Cephes' expf), within 2 units in the last place.
INLINE float fast_exp(float x) {
  x = x < -87.3f ? -87.3f : x;
  x = x > 88.3f ? 88.3f : x;
  float n = std::floor(x * 1.44269504088896341f + 0.5f);
  float r = x - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, 4);
  return p * scale;
}

// erf by a rational function on [-4, 4], where it reaches 1 in float32; the coefficients are XLA's.
INLINE float fast_erf(float x) {
  x = x < -4.0f ? -4.0f : x;
  x = x > 4.0f ? 4.0f : x;
  float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s - 2.10102402082508e-06f;
  p = p * s - 5.69250639462346e-05f;
  p = p * s - 7.34990630326855e-04f;
  p = p * s - 2.95459980854025e-03f;
  p = p * s - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s - 2.13374055278905e-04f;
  q = q * s - 1.68282697438203e-03f;
  q = q * s - 7.37332916720468e-03f;
  q = q * s - 1.42647390514189e-02f;
  float y = x * p / q;
  y = y > 1.0f ? 1.0f : y;
  return y < -1.0f ? -1.0f : y;
}

INLINE float sigmoid(float x) {
  return 1.0f / (1.0f + fast_exp(-x));
}

template <Act act>
INLINE float apply(float x) {
  if constexpr (act == Act::gelu) {
    return 0.5f * x * (1.0f + fast_erf(x * 0.70710678118654752f));
  } else if constexpr (act == Act::gelu_tanh) {
    // 0.5 (1 + tanh u) = sigmoid(2 u)
    return x * sigmoid(2.0f * 0.7978845608028654f * (x + 0.044715f * x * x * x));
  } else if constexpr (act == Act::silu) {
    return x * sigmoid(x);
  } else if constexpr (act == Act::relu) {
    return x < 0.0f ? 0.0f : x;
  } else if constexpr (act == Act::tanh) {
    return 2.0f * sigmoid(2.0f * x) - 1.0f;
  } else if constexpr (act == Act::quick_gelu) {
    return x * sigmoid(1.702f * x);
  } else {
    return x;
  }
}

// y[r, :] = act(y[r, :] + bias), for rows of `width` numbers that lie `stride` apart.
void finish(float* y, const float* bias, long rows, long width, long stride, Act act);
// out = act(x)
void activate(const float* x, float* out, long count, Act act);
// out = act(gate) * up
void gate(const float* gate, const float* up, float* out, long count, Act act);
// out = weight * normalized(x + residual) + bias, over rows of `width`; residual, weight, bias may be null.
void layer_norm(
    const float* x, const float* residual, const float* weight, const float* bias, float* out, long rows, long width,
    float eps);
void rms_norm(const float* x, const float* weight, float* out, long rows, long width, float eps);
// In place: exp(scale (x - the largest x)), for a scale above zero and a width that is a multiple of 16; their sum.
float exponents(float* x, long width, float scale);
// x *= factor
void multiply_by(float* x, long width, float factor);
// out = x rotated by half: first * cos - second * sin, second * cos + first * sin.
void rotate(const float* x, const float* cos, const float* sin, float* out, long half);

}  // namespace theodolite
