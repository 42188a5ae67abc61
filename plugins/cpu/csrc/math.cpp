#include "math.h"

namespace theodolite {

namespace {

constexpr long LANES = 16;
using Lanes = float __attribute__((vector_size(LANES * sizeof(float)), aligned(sizeof(float)), may_alias));

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

}  // namespace

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

WIDE float exponents(float* x, long width, float scale) {
  // in lanes by hand: compilers do not reorder a maximum that not-a-number takes part in
  Lanes tops = *reinterpret_cast<const Lanes*>(x);
  for (long i = LANES; i < width; i += LANES) {
    Lanes more = *reinterpret_cast<const Lanes*>(x + i);
    tops = more > tops ? more : tops;
  }
  float top = tops[0], sum = 0.0f;
  for (long j = 1; j < LANES; j++) top = tops[j] > top ? tops[j] : top;
  for (long i = 0; i < width; i++) {
    float e = fast_exp((x[i] - top) * scale);
    x[i] = e;
    sum += e;
  }
  return sum;
}

WIDE void multiply_by(float* x, long width, float factor) {
  for (long i = 0; i < width; i++) {
    x[i] *= factor;
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
