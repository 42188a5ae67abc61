// The operations as MLX primitives on the CPU stream: nothing is copied on the way in or out, and nothing is computed
// before MLX asks for it. Products are computed per block inside our own pool, by our own tiles on AVX2 and by OpenBLAS,
// single-threaded, elsewhere: so bias and activation are applied while a block is in cache and two pools never fight.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "gemm.h"
#include "math.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "pool.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace nb = nanobind;
namespace mx = mlx::core;

namespace theodolite {

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
Sgemm sgemm = nullptr;
constexpr int ROWS = 101, PLAIN = 111, TURNED = 112;
constexpr long FEW = 24, ROW_BLOCK = 512, QUERY_BLOCK = 96, NORM_BLOCK = 64, FLAT_BLOCK = 1 << 14;
constexpr long TILED_ROWS = 96, TILED_COLUMNS = 256, IN_CACHE = 64;
constexpr long ALONE = 1 << 20;  // multiplications that are done before another thread has woken up

// Opens the BLAS and keeps large blocks of memory from going back to the system at every free.
void setup(const std::string& library) {
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw std::runtime_error(dlerror());
  }
  sgemm = reinterpret_cast<Sgemm>(dlsym(handle, "scipy_cblas_sgemm"));
  auto threads = reinterpret_cast<void (*)(int)>(dlsym(handle, "scipy_openblas_set_num_threads"));
  if (sgemm == nullptr || threads == nullptr) {
    throw std::runtime_error(library + " has no scipy_cblas_sgemm");
  }
  threads(1);
#if defined(__GLIBC__)
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 29);
#endif
}

long blocks(long count, long size) {
  return (count + size - 1) / size;
}

std::unique_ptr<float[]> scratch(long count) {
  return std::unique_ptr<float[]>(new float[count]);  // not zeroed
}

// All panels of w [n, k], one after the other.
void pack(const float* w, float* panels, long n, long k) {
  long each = std::max(1L, FLAT_BLOCK / (PANEL * k)) * PANEL;
  Pool::get().run(blocks(n, each), [&](int i) {
    for (long first = i * each; first < std::min(n, (i + 1) * each); first += PANEL) {
      pack_panel(w, k, n, k, first, panels + first * k);
    }
  });
}

// y = act(x w^T + bias) with w packed. Jobs are blocks of rows and columns; few rows are cut by columns alone.
void packed_linear(
    const float* x, const float* panels, const float* bias, float* y, long m, long n, long k, Act act) {
  Pool& pool = Pool::get();
  long row_parts = blocks(m, TILED_ROWS), rows = blocks(blocks(m, row_parts), TILE) * TILE;
  row_parts = blocks(m, rows);
  long parts = m * n * k < ALONE ? 1 : std::max(blocks(n, TILED_COLUMNS), blocks(4L * pool.size(), row_parts));
  long columns = blocks(blocks(n, parts), PANEL) * PANEL;
  parts = blocks(n, columns);
  pool.run(row_parts * parts, [&](int job) {
    long top = job / parts * rows, left = job % parts * columns;
    long high = std::min(rows, m - top), right = std::min(n, left + columns);
    for (; left < right; left += IN_CACHE) {
      long wide = std::min(IN_CACHE, right - left);
      float* to = y + top * n + left;
      multiply(x + top * k, k, panels + left * k, PANEL * k, PANEL, to, n, high, wide, k);
      finish(to, bias == nullptr ? nullptr : bias + left, high, wide, n, act);
    }
  });
}

// y = act(x w^T + bias): [m, k] x [n, k] -> [m, n]. Many rows are cut by rows, few by columns.
void linear(const float* x, const float* w, const float* bias, float* y, long m, long n, long k, Act act) {
  Pool& pool = Pool::get();
  if (tiles() && m > FEW) {
    auto panels = scratch(packed_size(n, k));
    pack(w, panels.get(), n, k);
    packed_linear(x, panels.get(), bias, y, m, n, k, act);
    return;
  }
  if (m >= 48L * pool.size()) {
    long parts = pool.size() * blocks(m, ROW_BLOCK * pool.size());
    long size = blocks(blocks(m, parts), 8) * 8;
    pool.run(blocks(m, size), [&](int i) {
      long first = i * size, rows = std::min(size, m - first);
      sgemm(ROWS, PLAIN, TURNED, rows, n, k, 1.0f, x + first * k, k, w, k, 0.0f, y + first * n, n);
      finish(y + first * n, bias, rows, n, n, act);
    });
    return;
  }
  long size = m * n * k < ALONE ? n : blocks(blocks(n, 4L * pool.size()), 16) * 16;
  pool.run(blocks(n, size), [&](int i) {
    long first = i * size, columns = std::min(size, n - first);
    if (tiles()) {
      few_rows(x, w + first * k, y + first, m, columns, k, n);
    } else {
      sgemm(ROWS, PLAIN, TURNED, m, columns, k, 1.0f, x, k, w + first * k, k, 0.0f, y + first, n);
    }
    finish(y + first, bias == nullptr ? nullptr : bias + first, m, columns, n, act);
  });
}

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
  void operator()(Heads q, Heads k, Heads v, const int32_t* real, float* out) const {
    long query_blocks = blocks(length, QUERY_BLOCK), each = packed_size(length, width);
    std::unique_ptr<float[]> panels;
    auto pack_keys = [&](int i) {
      const float* from = k.data + i / groups * k.batch + i % groups * k.head;
      for (long first = 0; first < length; first += PANEL) {
        pack_panel(from, k.row, length, width, first, panels.get() + i * each + first * width);
      }
    };
    auto attend = [&](int job) {
      long row = job / (h * query_blocks), head = job / query_blocks % h, first = job % query_blocks * QUERY_BLOCK;
      long group = head / (h / groups);
      block(
          {q.data + row * q.batch + head * q.head, q.row}, {k.data + row * k.batch + group * k.head, k.row},
          panels == nullptr ? nullptr : panels.get() + (row * groups + group) * each,
          {v.data + row * v.batch + group * v.head, v.row}, real == nullptr ? nullptr : real + row * length,
          {out + row * length * h * width + head * width, h * width}, first, std::min(length, first + QUERY_BLOCK));
    };
    if (tiles()) {
      panels = scratch(b * groups * each);
      Pool::get().run(b * groups, pack_keys, b * h * length * width < ALONE / 16);
    }
    Pool::get().run(b * h * query_blocks, attend, b * h * length * length * width < ALONE);
  }

  template <class Number>
  struct Rows {
    Number* data;
    long step;
  };

  void block(
      Rows<const float> q, Rows<const float> k, const float* panels, Rows<const float> v, const int32_t* keep,
      Rows<float> out, long first, long last) const {
    long low = window ? std::max(0L, first - window + 1) : 0;
    long high = window ? std::min(length, last + window - 1) : length;
    high = causal ? std::min(high, last) : high;
    if (keep != nullptr) {
      while (low < high && keep[low] == 0) low++;
      while (high > low && keep[high - 1] == 0) high--;
      bool any = false;
      for (long i = first; i < last; i++) any |= keep[i] != 0;
      high = any ? high : low;
    }
    low = low / PANEL * PANEL;  // where a panel of packed keys begins
    long keys = high - low, rows = last - first;
    if (keys <= 0) {
      for (long i = first; i < last; i++) std::fill_n(out.data + i * out.step, width, 0.0f);
      return;
    }
    static thread_local std::vector<float> held;
    held.resize(std::max<size_t>(held.size(), rows * keys));
    float* scores = held.data();
    const float* queries = q.data + first * q.step;
    if (panels != nullptr) {
      multiply(queries, q.step, panels + low * width, PANEL * width, PANEL, scores, keys, rows, keys, width);
    } else {
      sgemm(
          ROWS, PLAIN, TURNED, rows, keys, width, 1.0f, queries, q.step, k.data + low * k.step, k.step, 0.0f, scores,
          keys);
    }
    float shares[QUERY_BLOCK];
    for (long i = 0; i < rows; i++) shares[i] = weigh(scores + i * keys, first + i, low, high, keep);
    const float* values = v.data + low * v.step;
    float* to = out.data + first * out.step;
    if (panels != nullptr && width % PANEL == 0) {
      multiply(scores, keys, values, PANEL, v.step, to, out.step, rows, width, keys);
    } else {
      sgemm(
          ROWS, PLAIN, PLAIN, rows, width, keys, 1.0f, scores, keys, values, v.step, 0.0f, to, out.step);
    }
    for (long i = 0; i < rows; i++) multiply_by(to + i * out.step, width, shares[i]);
  }

  // Weights of the keys that this query may see, zero for the others; returns what makes them sum to one.
  float weigh(float* scores, long query, long low, long high, const int32_t* keep) const {
    long from = window ? std::max(low, query - window + 1) : low;
    long to = window ? std::min(high, query + window) : high;
    to = causal ? std::min(to, query + 1) : to;
    if (keep != nullptr) {
      while (from < to && keep[from] == 0) from++;
    }
    if (from >= to || (keep != nullptr && keep[query] == 0)) {
      std::fill_n(scores, high - low, 0.0f);
      return 0.0f;
    }
    bool holes = false;
    if (keep != nullptr) {
      for (long i = from; i < to; i++) holes |= keep[i] == 0;
    }
    for (long i = from; holes && i < to; i++) {
      if (keep[i] == 0) scores[i - low] = -INFINITY;
    }
    std::fill(scores, scores + (from - low), 0.0f);
    float sum = exponents(scores + (from - low), to - from, scale);
    std::fill(scores + (to - low), scores + (high - low), 0.0f);
    for (long i = from; holes && i < to; i++) {
      if (keep[i] == 0) scores[i - low] = 0.0f;
    }
    return 1.0f / sum;
  }
};

// A primitive of one output whose evaluation is a function of raw pointers, run on the CPU stream.
template <class Body>
class Operation : public mx::Primitive {
 public:
  Operation(mx::Stream stream, const char* name, Body body, std::optional<mx::Strides> strides)
      : mx::Primitive(stream), name_(name), body_(std::move(body)), strides_(std::move(strides)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    mx::array& out = outputs[0];
    if (strides_) {
      mx::array::Flags flags{};
      flags.contiguous = true;
      flags.row_contiguous = flags.col_contiguous = out.size() <= 1;
      out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), *strides_, flags);
    } else {
      out.set_data(mx::allocator::malloc(out.nbytes()));
    }
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<mx::array> kept;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      kept.push_back(mx::array::unsafe_weak_copy(input));
    }
    encoder.set_output_array(out);
    encoder.dispatch([body = body_, kept = std::move(kept), out = mx::array::unsafe_weak_copy(out)]() mutable {
      body(kept, out.data<float>());
    });
  }

  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override {
    throw std::runtime_error("these kernels run on a CPU only");
  }

  const char* name() const override {
    return name_;
  }

 private:
  const char* name_;
  Body body_;
  std::optional<mx::Strides> strides_;
};

mx::Stream cpu() {
  return mx::default_stream(mx::Device::cpu);
}

template <class Body>
mx::array lazily(
    const char* name, mx::Shape shape, std::vector<mx::array> inputs, Body body,
    std::optional<mx::Strides> strides = std::nullopt) {
  auto primitive = std::make_shared<Operation<Body>>(cpu(), name, std::move(body), std::move(strides));
  return mx::array(std::move(shape), mx::float32, std::move(primitive), std::move(inputs));
}

mx::array flat(const mx::array& x) {
  return mx::contiguous(x, false, cpu());
}

using Maybe = std::optional<mx::array>;

// Appends an input that may be absent; its place, or -1.
int add(std::vector<mx::array>& inputs, const Maybe& x) {
  if (!x) return -1;
  inputs.push_back(flat(*x));
  return static_cast<int>(inputs.size()) - 1;
}

const float* at(const std::vector<mx::array>& inputs, int place) {
  return place < 0 ? nullptr : inputs[place].data<float>();
}

mx::array linear_op(const mx::array& x, const mx::array& weight, const Maybe& bias, int act) {
  long n = weight.shape(0), k = weight.shape(1), m = x.size() / std::max(k, 1L);
  auto shape = x.shape();
  shape.back() = n;
  std::vector<mx::array> inputs{flat(x), flat(weight)};
  int b = add(inputs, bias);
  return lazily("Linear", shape, std::move(inputs), [=](const std::vector<mx::array>& in, float* out) {
    linear(at(in, 0), at(in, 1), at(in, b), out, m, n, k, static_cast<Act>(act));
  });
}

// The weights [n, k] as panels, to be given to `packed_linear_op` again and again.
mx::array pack_op(const mx::array& weight) {
  long n = weight.shape(0), k = weight.shape(1);
  mx::Shape shape{static_cast<int>(blocks(n, PANEL)), static_cast<int>(k), static_cast<int>(PANEL)};
  return lazily("Pack", shape, {flat(weight)}, [=](const std::vector<mx::array>& in, float* out) {
    pack(at(in, 0), out, n, k);
  });
}

mx::array packed_linear_op(const mx::array& x, const mx::array& panels, long n, const Maybe& bias, int act) {
  long k = panels.shape(1), m = x.size() / std::max(k, 1L);
  auto shape = x.shape();
  shape.back() = n;
  std::vector<mx::array> inputs{flat(x), panels};
  int b = add(inputs, bias);
  return lazily("PackedLinear", shape, std::move(inputs), [=](const std::vector<mx::array>& in, float* out) {
    packed_linear(at(in, 0), at(in, 1), at(in, b), out, m, n, k, static_cast<Act>(act));
  });
}

mx::array activation_op(const mx::array& x, int act) {
  long count = x.size();
  return lazily("Activation", x.shape(), {flat(x)}, [=](const std::vector<mx::array>& in, float* out) {
    Pool::get().run(blocks(count, FLAT_BLOCK), [&](int i) {
      long first = i * FLAT_BLOCK;
      activate(at(in, 0) + first, out + first, std::min(FLAT_BLOCK, count - first), static_cast<Act>(act));
    });
  });
}

// Rows of the last axis may lie apart (a split of a fused projection), as long as they lie evenly.
mx::array gated_op(const mx::array& g, const mx::array& up, int act) {
  long width = g.shape(-1), rows = g.size() / std::max(width, 1L);
  return lazily("Gated", g.shape(), {g, up}, [=](const std::vector<mx::array>& in, float* out) {
    auto step = [&](const mx::array& x) -> long {
      if (x.flags().row_contiguous) return width;
      long stride = x.ndim() > 1 ? x.strides()[x.ndim() - 2] : width;
      bool even = x.ndim() > 1 && x.strides().back() == 1;
      for (int i = static_cast<int>(x.ndim()) - 3; even && i >= 0; i--) {
        even = x.shape(i) == 1 || x.strides()[i] == x.strides()[i + 1] * x.shape(i + 1);
      }
      return even ? stride : -1;
    };
    long a = step(in[0]), b = step(in[1]);
    const mx::array &x = in[0], &y = in[1];
    auto row = [&](const mx::array& from, long stride, long r, std::vector<float>& copy) -> const float* {
      if (stride >= 0) return from.data<float>() + r * stride;
      copy.resize(width);  // an odd layout: element by element
      for (long i = 0; i < width; i++) {
        long rest = r * width + i, offset = 0;
        for (int d = static_cast<int>(from.ndim()) - 1; d >= 0; d--) {
          offset += rest % from.shape(d) * from.strides()[d];
          rest /= from.shape(d);
        }
        copy[i] = from.data<float>()[offset];
      }
      return copy.data();
    };
    long size = std::max(1L, FLAT_BLOCK / std::max(width, 1L));
    Pool::get().run(blocks(rows, size), [&](int i) {
      std::vector<float> left, right;
      for (long r = i * size; r < std::min(rows, (i + 1) * size); r++) {
        gate(row(x, a, r, left), row(y, b, r, right), out + r * width, width, static_cast<Act>(act));
      }
    });
  });
}

mx::array layer_norm_op(
    const mx::array& x, const Maybe& residual, const Maybe& weight, const Maybe& bias, float eps) {
  long width = x.shape(-1), rows = x.size() / std::max(width, 1L);
  std::vector<mx::array> inputs{flat(x)};
  int r = add(inputs, residual), w = add(inputs, weight), b = add(inputs, bias);
  return lazily("LayerNorm", x.shape(), std::move(inputs), [=](const std::vector<mx::array>& in, float* out) {
    Pool::get().run(blocks(rows, NORM_BLOCK), [&](int i) {
      long first = i * NORM_BLOCK * width;
      layer_norm(
          at(in, 0) + first, r < 0 ? nullptr : at(in, r) + first, at(in, w), at(in, b), out + first,
          std::min(NORM_BLOCK, rows - i * NORM_BLOCK), width, eps);
    });
  });
}

mx::array rms_norm_op(const mx::array& x, const Maybe& weight, float eps) {
  long width = x.shape(-1), rows = x.size() / std::max(width, 1L);
  std::vector<mx::array> inputs{flat(x)};
  int w = add(inputs, weight);
  return lazily("RMSNorm", x.shape(), std::move(inputs), [=](const std::vector<mx::array>& in, float* out) {
    Pool::get().run(blocks(rows, NORM_BLOCK), [&](int i) {
      long first = i * NORM_BLOCK;
      rms_norm(
          at(in, 0) + first * width, at(in, w), out + first * width, std::min(NORM_BLOCK, rows - first), width, eps);
    });
  });
}

Heads heads(const mx::array& x) {
  const auto& s = x.strides();
  return {x.data<float>(), s[0], s[1], s[2]};
}

// A copy as [B, H, L, D] of an array whose last axis is not the innermost.
Heads packed(const mx::array& x, std::vector<float>& copy) {
  copy.resize(x.size());
  const auto& s = x.strides();
  long h = x.shape(1), length = x.shape(2), width = x.shape(3);
  const float* data = x.data<float>();
  for (long i = 0, b = 0; b < x.shape(0); b++)
    for (long j = 0; j < h; j++)
      for (long p = 0; p < length; p++)
        for (long d = 0; d < width; d++) copy[i++] = data[b * s[0] + j * s[1] + p * s[2] + d * s[3]];
  return {copy.data(), h * length * width, length * width, width};
}

// The output lies as [B, L, H, D], so that joining the heads again costs nothing.
mx::Strides joined(const mx::Shape& shape) {
  long h = shape[1], length = shape[2], width = shape[3];
  return {length * h * width, width, h * width, 1};
}

mx::array attention_op(
    const mx::array& q, const mx::array& k, const mx::array& v, float scale, const Maybe& mask, bool causal,
    long window) {
  Attention body{q.shape(0), q.shape(1), k.shape(1), q.shape(2), q.shape(3), scale, causal, window};
  std::vector<mx::array> inputs{q, k, v};
  if (mask) inputs.push_back(flat(mx::astype(*mask, mx::int32, cpu())));
  auto run = [=](const std::vector<mx::array>& in, float* out) {
    std::vector<std::vector<float>> copies(3);
    Heads sides[3];
    for (int i = 0; i < 3; i++) {
      sides[i] = heads(in[i]);
      if (in[i].strides()[3] != 1 && in[i].shape(3) > 1) sides[i] = packed(in[i], copies[i]);
    }
    body(sides[0], sides[1], sides[2], in.size() > 3 ? in[3].data<int32_t>() : nullptr, out);
  };
  return lazily("Attention", q.shape(), std::move(inputs), run, joined(q.shape()));
}

mx::array rope_op(const mx::array& x, const mx::array& wavelengths) {
  long b = x.shape(0), h = x.shape(1), length = x.shape(2), width = x.shape(3), half = width / 2;
  auto run = [=](const std::vector<mx::array>& in, float* out) {
    std::vector<float> cos(length * half), sin(length * half), copy;
    const float* wave = at(in, 1);
    Pool::get().run(blocks(length, 32), [&](int i) {
      for (long p = i * 32; p < std::min(length, (i + 1) * 32L); p++) {
        for (long j = 0; j < half; j++) {
          double angle = static_cast<double>(p) / wave[j];  // float32 would lose digits at far positions
          cos[p * half + j] = static_cast<float>(std::cos(angle));
          sin[p * half + j] = static_cast<float>(std::sin(angle));
        }
      }
    });
    Heads from = heads(in[0]);
    if (in[0].strides()[3] != 1) from = packed(in[0], copy);
    Pool::get().run(b * blocks(length, 32), [&](int job) {
      long row = job / blocks(length, 32), start = job % blocks(length, 32) * 32;
      for (long p = start; p < std::min(length, start + 32); p++) {
        for (long head = 0; head < h; head++) {
          rotate(
              from.data + row * from.batch + head * from.head + p * from.row, &cos[p * half], &sin[p * half],
              out + ((row * length + p) * h + head) * width, half);
        }
      }
    });
  };
  return lazily("Rope", x.shape(), {x, flat(wavelengths)}, run, joined(x.shape()));
}

}  // namespace theodolite

NB_MODULE(_ops, m) {
  using namespace theodolite;
  m.def("setup", &setup, nb::arg("library"));
  m.attr("PANEL") = PANEL;
  m.def("tiles", &tiles);
  m.def("pack", &pack_op, nb::arg("weight"));
  m.def(
      "packed_linear", &packed_linear_op, nb::arg("x"), nb::arg("panels"), nb::arg("n"), nb::arg("bias").none(),
      nb::arg("act"));
  m.def("threads", [] { return Pool::get().size(); });
  m.def("linear", &linear_op, nb::arg("x"), nb::arg("weight"), nb::arg("bias").none(), nb::arg("act"));
  m.def("activation", &activation_op, nb::arg("x"), nb::arg("act"));
  m.def("gated", &gated_op, nb::arg("gate"), nb::arg("up"), nb::arg("act"));
  m.def(
      "layer_norm", &layer_norm_op, nb::arg("x"), nb::arg("residual").none(), nb::arg("weight").none(),
      nb::arg("bias").none(), nb::arg("eps"));
  m.def("rms_norm", &rms_norm_op, nb::arg("x"), nb::arg("weight").none(), nb::arg("eps"));
  m.def(
      "attention", &attention_op, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("scale"), nb::arg("mask").none(),
      nb::arg("causal"), nb::arg("window"));
  m.def("rope", &rope_op, nb::arg("x"), nb::arg("wavelengths"));
}
