// The operations as MLX primitives on the CPU stream: nothing is copied on the way in or out, and nothing is computed
// before MLX asks for it. Products are computed per block inside our own pool, by our own tiles on AVX2 and AVX-512 and
// by OpenBLAS, single-threaded, elsewhere: so bias and activation are applied while a block is in cache and two pools
// never fight.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gemm.h"
#include "mlx/backend/common/utils.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "pool.h"
#include "panels.h"
#include "products.h"

namespace nb = nanobind;
namespace mx = mlx::core;

namespace theodolite {

constexpr long NORM_BLOCK = 64;

// What an operation was given, once it is there.
class Inputs {
 public:
  explicit Inputs(std::vector<mx::array> arrays) : arrays_(std::move(arrays)), copies_(arrays_.size()) {}

  const mx::array& operator[](int i) const {
    return arrays_[i];
  }

  int size() const {
    return static_cast<int>(arrays_.size());
  }

  // An input's numbers in rows, one after the other: where they lie, or a copy of an odd layout; null for place -1.
  // Asking MLX for this instead would be a node of the graph for every input, and nearly all lie so.
  template <class Number = float>
  const Number* flat(int place) {
    static_assert(sizeof(Number) == sizeof(float));
    if (place < 0) return nullptr;
    const mx::array& x = arrays_[place];
    if (x.flags().row_contiguous) return x.data<Number>();
    std::vector<float>& copy = copies_[place];
    copy.resize(x.size());
    const char* data = reinterpret_cast<const char*>(x.data<Number>());
    for (size_t i = 0; i < x.size(); i++) {
      std::memcpy(&copy[i], data + sizeof(float) * mx::elem_to_loc(static_cast<int>(i), x.shape(), x.strides()), 4);
    }
    return reinterpret_cast<const Number*>(copy.data());
  }

 private:
  std::vector<mx::array> arrays_;
  std::vector<std::vector<float>> copies_;
};

// A primitive whose evaluation is a function of raw pointers, to the output or to the vector of outputs, run on the CPU
// stream.
template <class Body>
class Operation : public mx::Primitive {
 public:
  // strides: of each output, or none where all lie row by row
  Operation(mx::Stream stream, const char* name, Body body, std::vector<mx::Strides> strides)
      : mx::Primitive(stream), name_(name), body_(std::move(body)), strides_(std::move(strides)) {}

  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override {
    auto& encoder = mx::cpu::get_command_encoder(stream());
    std::vector<mx::array> kept;
    for (const auto& input : inputs) {
      encoder.set_input_array(input);
      kept.push_back(mx::array::unsafe_weak_copy(input));
    }
    std::vector<float*> made;
    for (size_t i = 0; i < outputs.size(); i++) {
      mx::array& out = outputs[i];
      if (!strides_.empty()) {
        mx::array::Flags flags{};
        flags.contiguous = true;
        flags.row_contiguous = flags.col_contiguous = out.size() <= 1;
        out.set_data(mx::allocator::malloc(out.nbytes()), out.size(), strides_[i], flags);
      } else {
        out.set_data(mx::allocator::malloc(out.nbytes()));
      }
      encoder.set_output_array(out);
      made.push_back(out.data<float>());
    }
    encoder.dispatch([body = body_, kept = std::move(kept), made = std::move(made)]() mutable {
      Inputs in(std::move(kept));
      if constexpr (std::is_invocable_v<Body, Inputs&, float*>) {
        body(in, made[0]);
      } else {
        body(in, made);
      }
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
  std::vector<mx::Strides> strides_;
};

mx::Stream cpu() {
  return mx::default_stream(mx::Device::cpu);
}

template <class Body>
mx::array lazily(
    const char* name, mx::Shape shape, std::vector<mx::array> inputs, Body body,
    std::vector<mx::Strides> strides = {}, mx::Stream stream = cpu(), mx::Dtype dtype = mx::float32) {
  auto primitive = std::make_shared<Operation<Body>>(stream, name, std::move(body), std::move(strides));
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

// How [B, H, L, D] lies as [B, L, H, D], as a product leaves it and the next one reads it.
mx::Strides by_position(const mx::Shape& shape) {
  long h = shape[1], length = shape[2], width = shape[3];
  return {length * h * width, width, h * width, 1};
}

using Maybe = std::optional<mx::array>;

// An operation, or nothing where MLX should compute it instead.
using Answer = std::optional<mx::array>;

bool ours(const mx::array& x) {
  return x.dtype() == mx::float32 && x.size() > 0;
}

bool ours(const Maybe& x) {
  return !x || ours(*x);
}

template <class... Arrays>
bool all_ours(const Arrays&... arrays) {
  return (ours(arrays) && ...);
}

// Whether a bias or a norm's weight is one row of that width. What does not fit is MLX's to answer: it may be broadcast, or
// an error; here it would be memory of others.
bool is_row(const Maybe& x, long width) {
  return !x || (x->ndim() == 1 && x->shape(0) == width);
}

// Appends an input that may be absent; its place, or -1.
int add(std::vector<mx::array>& inputs, const Maybe& x) {
  if (!x) return -1;
  inputs.push_back(*x);
  return static_cast<int>(inputs.size()) - 1;
}

Answer linear_op(const mx::array& x, const mx::array& weight, const Maybe& bias, int act) {
  if (!all_ours(x, weight, bias) || weight.ndim() != 2 || x.ndim() < 1) return std::nullopt;
  if (x.shape(-1) != weight.shape(1) || !is_row(bias, weight.shape(0))) return std::nullopt;
  long n = weight.shape(0), k = weight.shape(1), m = x.size() / std::max(k, 1L);
  auto shape = x.shape();
  shape.back() = n;
  std::vector<mx::array> inputs{x, weight};
  int b = add(inputs, bias);
  return lazily("Linear", shape, std::move(inputs), [=](Inputs& in, float* out) {
    linear(in.flat(0), in.flat(1), in.flat(b), out, m, n, k, static_cast<Act>(act));
  });
}

struct PackedWeight {
  Panels panels;
  bool bf16;  // a word is two numbers
  mx::array left;  // what the weight's array was left as; it is another one once somebody has written to it

  bool stands_for(const mx::array& weight) const {
    return weight.id() == left.id();
  }
};

// The weight [n, k] as panels, to be used again and again; computed at once, and only of what is there to be read, as a
// parameter is: what a forward pass makes in passing is packed in passing. The array is given up for the panels. Should
// anybody ask for its numbers again, they are read back: on any thread, but by one at a time.
// Panels are of float32, whatever the weight is; of bfloat16 where it is and the processor multiplies that.
std::shared_ptr<PackedWeight> pack_op(mx::array& weight) {
  bool known = weight.dtype() == mx::float32 || weight.dtype() == mx::bfloat16 || weight.dtype() == mx::float16;
  if (tiles() == nullptr || !known || weight.size() == 0 || !weight.is_available()) return nullptr;
  bool bf16 = weight.dtype() == mx::bfloat16 && bf16_tiles() != nullptr && weight.shape(1) % 2 == 0;
  mx::array words = bf16 ? mx::view(mx::contiguous(weight, false, cpu()), mx::uint32, cpu())
                         : mx::astype(weight, mx::float32, cpu());
  words.eval();
  Panels panels(Inputs({words}).flat(0), words.shape(0), words.shape(1));
  static const mx::Stream anywhere = mx::new_thread_unsafe_stream(mx::Device::cpu);
  auto back = [panels](Inputs&, float* out) { panels.unpack(out); };
  mx::array left = lazily("Unpack", words.shape(), {}, back, {}, anywhere, words.dtype());
  left = bf16 ? mx::view(left, mx::bfloat16, anywhere) : mx::astype(left, weight.dtype(), anywhere);
  weight.overwrite_descriptor(left);
  return std::make_shared<PackedWeight>(PackedWeight{panels, bf16, left});
}

// Several layers over the same rows, in one pass; no answer where their weights are packed as different numbers.
// With head_dim, results [B, L, H * D] are seen as [B, H, L, D].
std::optional<std::vector<mx::array>> packed_linears_op(
    const mx::array& x, const std::vector<std::shared_ptr<PackedWeight>>& weights, const std::vector<Maybe>& biases,
    int act, std::optional<int> head_dim) {
  bool bf16 = weights[0]->bf16;
  const long k = weights[0]->panels.k * (bf16 ? 2 : 1), m = x.size() / k;
  if (x.ndim() < 1 || (head_dim && x.ndim() != 3)) return std::nullopt;
  std::vector<mx::array> inputs{x};
  std::vector<mx::Shape> shapes;
  std::vector<mx::Strides> strides;
  std::vector<std::pair<Panels, int>> layers;
  for (size_t i = 0; i < weights.size(); i++) {
    const Panels& panels = weights[i]->panels;
    if (!all_ours(x, biases[i]) || weights[i]->bf16 != bf16 || !is_row(biases[i], panels.n)) return std::nullopt;
    if (x.shape(-1) != k || panels.k != weights[0]->panels.k) return std::nullopt;
    if (head_dim) {
      int width = *head_dim;
      if (width < 1 || panels.n % width != 0) return std::nullopt;
      shapes.push_back({x.shape(0), static_cast<int>(panels.n) / width, x.shape(1), width});
      strides.push_back(by_position(shapes.back()));
    } else {
      shapes.push_back(x.shape());
      shapes.back().back() = panels.n;
    }
    layers.emplace_back(panels, add(inputs, biases[i]));
  }
  auto body = [=](Inputs& in, const std::vector<float*>& outs) {
    std::vector<Layer> products;
    for (size_t i = 0; i < layers.size(); i++) {
      const auto& [panels, bias] = layers[i];
      products.push_back({panels.data(), in.flat(bias), outs[i], panels.n});
    }
    packed_linear(in.flat(0), products, bf16, m, k, static_cast<Act>(act));
  };
  auto primitive = std::make_shared<Operation<decltype(body)>>(cpu(), "PackedLinear", body, std::move(strides));
  std::vector<mx::Dtype> dtypes(shapes.size(), mx::float32);
  return mx::array::make_arrays(std::move(shapes), dtypes, std::move(primitive), inputs);
}

Answer activation_op(const mx::array& x, int act) {
  if (!all_ours(x)) return std::nullopt;
  long count = x.size();
  return lazily("Activation", x.shape(), {x}, [=](Inputs& in, float* out) {
    const float* from = in.flat(0);
    Pool::get().run(blocks(count, FLAT_BLOCK), [&](int i) {
      long first = i * FLAT_BLOCK;
      activate(from + first, out + first, std::min(FLAT_BLOCK, count - first), static_cast<Act>(act));
    });
  });
}

// Rows of the last axis may lie apart (a split of a fused projection), as long as they lie evenly.
Answer gated_op(const mx::array& g, const mx::array& up, int act) {
  if (!all_ours(g, up) || g.ndim() < 1 || g.shape() != up.shape()) return std::nullopt;
  long width = g.shape(-1), rows = g.size() / std::max(width, 1L);
  return lazily("Gated", g.shape(), {g, up}, [=](Inputs& in, float* out) {
    auto step = [&](const mx::array& x) -> long {
      if (x.flags().row_contiguous) return width;
      if (x.strides().back() != 1 && width > 1) return -1;
      long stride = width, next = 0;  // of the innermost axis of several rows, and what the one around it has to be
      bool found = false;
      for (int i = static_cast<int>(x.ndim()) - 2; i >= 0; i--) {
        if (x.shape(i) == 1) continue;  // its stride says nothing
        if (found && x.strides()[i] != next) return -1;
        if (!found) stride = x.strides()[i];
        next = x.strides()[i] * x.shape(i);
        found = true;
      }
      return stride;
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

Answer layer_norm_op(
    const mx::array& x, const Maybe& residual, const Maybe& weight, const Maybe& bias, float eps) {
  if (!all_ours(x, residual, weight, bias) || (residual && x.shape() != residual->shape())) return std::nullopt;
  if (x.ndim() < 1 || !is_row(weight, x.shape(-1)) || !is_row(bias, x.shape(-1))) return std::nullopt;
  long width = x.shape(-1), rows = x.size() / std::max(width, 1L);
  std::vector<mx::array> inputs{x};
  int r = add(inputs, residual), w = add(inputs, weight), b = add(inputs, bias);
  return lazily("LayerNorm", x.shape(), std::move(inputs), [=](Inputs& in, float* out) {
    const float *from = in.flat(0), *plus = in.flat(r), *scale = in.flat(w), *shift = in.flat(b);
    Pool::get().run(blocks(rows, NORM_BLOCK), [&](int i) {
      long first = i * NORM_BLOCK * width;
      layer_norm(
          from + first, plus == nullptr ? nullptr : plus + first, scale, shift, out + first,
          std::min(NORM_BLOCK, rows - i * NORM_BLOCK), width, eps);
    });
  });
}

Answer rms_norm_op(const mx::array& x, const Maybe& weight, float eps) {
  if (!all_ours(x, weight) || x.ndim() < 1 || !is_row(weight, x.shape(-1))) return std::nullopt;
  long width = x.shape(-1), rows = x.size() / std::max(width, 1L);
  std::vector<mx::array> inputs{x};
  int w = add(inputs, weight);
  return lazily("RMSNorm", x.shape(), std::move(inputs), [=](Inputs& in, float* out) {
    const float *from = in.flat(0), *scale = in.flat(w);
    Pool::get().run(blocks(rows, NORM_BLOCK), [&](int i) {
      long first = i * NORM_BLOCK;
      rms_norm(
          from + first * width, scale, out + first * width, std::min(NORM_BLOCK, rows - first), width, eps);
    });
  });
}

Heads heads(const mx::array& x) {
  const auto& s = x.strides();
  return {x.data<float>(), s[0], s[1], s[2]};
}

// Whether the rows of [B, H, L, D] lie apart, each number beside the next, as products read them.
bool readable(const mx::array& x) {
  bool beside = x.strides()[3] == 1 || x.shape(3) == 1, apart = x.strides()[2] >= x.shape(3) || x.shape(2) == 1;
  return beside && apart;
}

// A copy as [B, H, L, D] of an array that does not lie so.
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

Answer attention_op(
    const mx::array& q, const mx::array& k, const mx::array& v, float scale, const Maybe& mask, bool causal,
    long window) {
  if (!all_ours(q, k, v) || q.ndim() != 4 || k.ndim() != 4 || k.shape() != v.shape()) return std::nullopt;
  bool alike = q.shape(0) == k.shape(0) && q.shape(2) == k.shape(2) && q.shape(3) == k.shape(3);
  bool covered = !mask || mask->shape() == mx::Shape{q.shape(0), q.shape(2)};
  if (!alike || !covered || q.shape(1) % k.shape(1) != 0 || scale <= 0) return std::nullopt;
  Attention body{q.shape(0), q.shape(1), k.shape(1), q.shape(2), q.shape(3), scale, causal, window};
  std::vector<mx::array> inputs{q, k, v};
  if (mask) inputs.push_back(mx::astype(*mask, mx::int32, cpu()));
  auto run = [=](Inputs& in, float* out) {
    std::vector<std::vector<float>> copies(3);
    Heads sides[3];
    for (int i = 0; i < 3; i++) {
      sides[i] = heads(in[i]);
      if (!readable(in[i])) sides[i] = packed(in[i], copies[i]);
    }
    body(sides[0], sides[1], sides[2], in.flat<int32_t>(in.size() > 3 ? 3 : -1), out);
  };
  mx::Shape joined{q.shape(0), q.shape(2), q.shape(1) * q.shape(3)};
  return lazily("Attention", joined, std::move(inputs), run);
}

Answer rope_op(const mx::array& x, const mx::array& wavelengths) {
  if (!all_ours(x, wavelengths) || x.ndim() != 4 || wavelengths.ndim() != 1) return std::nullopt;
  if (x.shape(-1) != 2 * wavelengths.shape(0)) return std::nullopt;
  long b = x.shape(0), h = x.shape(1), length = x.shape(2), width = x.shape(3), half = width / 2;
  auto run = [=](Inputs& in, float* out) {
    std::vector<float> cos(length * half), sin(length * half), copy;
    const float* wave = in.flat(1);
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
  return lazily("Rope", x.shape(), {x, wavelengths}, run, {by_position(x.shape())});
}

}  // namespace theodolite

NB_MODULE(_ops, m) {
  using namespace theodolite;
  m.def("setup", &setup, nb::arg("library"));
  m.def("tiles", [] { return tiles() != nullptr; });
  m.def("bf16", [] { return bf16_tiles() != nullptr; });
  nb::class_<PackedWeight>(m, "PackedWeight").def("stands_for", &PackedWeight::stands_for, nb::arg("weight"));
  m.def("pack", &pack_op, nb::arg("weight"), nb::call_guard<nb::gil_scoped_release>());
  m.def(
      "packed_linears", &packed_linears_op, nb::arg("x"), nb::arg("weights"), nb::arg("biases"), nb::arg("act"),
      nb::arg("head_dim").none());
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
