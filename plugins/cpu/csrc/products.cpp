#include "products.h"

#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <vector>

#include "gemm.h"
#include "pool.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace theodolite {

namespace {

using Sgemm = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
Sgemm sgemm = nullptr;
constexpr int ROWS = 101, PLAIN = 111, TURNED = 112;
constexpr long ROW_BLOCK = 512, QUERY_BLOCK = 96;
constexpr long TILED_ROWS = 98, TILED_COLUMNS = 256, IN_CACHE = 64;
constexpr long WAYS = 8, PAGE = 1024;  // of the first cache: lines that share a place; words until places repeat
constexpr long ALONE = 1 << 17;  // multiplications that are done before another thread takes part

std::unique_ptr<float[]> scratch(long count) {
  return std::unique_ptr<float[]>(new float[count]);  // not zeroed
}

struct Rows {
  const float* data;
  long step;
};

// Whether rows so many words apart share lines of the first cache with more others than it has ways, if a tile reads
// them together.
bool crowded(const Tiles& fit, long step) {
  return fit.rows > WAYS && step % PAGE == 0;
}

// Rows of k numbers as a tile reads them: where they lie, or a copy, good until the thread asks for its next, of those
// that would crowd each other out or are to be of bfloat16.
Rows readable(const Tiles& fit, const float* x, long x_row, long rows, long k, bool bf16) {
  static thread_local std::vector<float> held;
  long words = bf16 ? k / 2 : k, step = crowded(fit, words) ? words + PANEL : words;
  if (!bf16 && !crowded(fit, x_row)) return {x, x_row};
  held.resize(std::max<size_t>(held.size(), rows * step));
  for (long r = 0; r < rows; r++) {
    if (bf16) {
      to_bf16(x + r * x_row, held.data() + r * step, k);
    } else {
      std::copy_n(x + r * x_row, k, held.data() + r * step);
    }
  }
  return {held.data(), step};
}

}  // namespace

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

void pack(const float* w, float* panels, long n, long k) {
  long each = std::max(1L, FLAT_BLOCK / (PANEL * k)) * PANEL;
  Pool::get().run(blocks(n, each), [&](int i) {
    for (long first = i * each; first < std::min(n, (i + 1) * each); first += PANEL) {
      pack_panel(w, k, n, k, first, panels + first * k);
    }
  });
}

// Jobs are blocks of rows and columns; few rows are cut by columns alone.
void packed_linear(const float* x, const std::vector<Layer>& layers, bool bf16, long m, long k, Act act) {
  Pool& pool = Pool::get();
  const Tiles& fit = bf16 ? *bf16_tiles() : *tiles();
  long words = bf16 ? k / 2 : k, n = 0;
  for (const Layer& layer : layers) n += layer.n;
  long row_parts = blocks(m, TILED_ROWS), rows = blocks(blocks(m, row_parts), fit.rows) * fit.rows;
  row_parts = blocks(m, rows);
  long parts = m * n * k < ALONE ? 1 : std::max(blocks(n, TILED_COLUMNS), blocks(2L * pool.size(), row_parts));
  long columns = blocks(blocks(n, parts), PANEL) * PANEL;
  std::vector<std::pair<const Layer*, long>> cuts;  // where the columns of a job begin
  for (const Layer& layer : layers) {
    for (long left = 0; left < layer.n; left += columns) cuts.emplace_back(&layer, left);
  }
  parts = cuts.size();
  pool.run(row_parts * parts, [&](int job) {
    auto [layer, left] = cuts[job % parts];
    long top = job / parts * rows, high = std::min(rows, m - top), right = std::min(layer->n, left + columns);
    Rows from = readable(fit, x + top * k, k, high, k, bf16);
    const long at_once = high <= FEW ? right - left : IN_CACHE;
    for (; left < right; left += at_once) {
      long wide = std::min(at_once, right - left);
      float* to = layer->y + top * layer->n + left;
      multiply(fit, from.data, from.step, layer->panels + left * words, PANEL * words, to, layer->n, high, wide, words);
      finish(to, layer->bias == nullptr ? nullptr : layer->bias + left, high, wide, layer->n, act);
    }
  });
}

// y = act(x w^T + bias): [m, k] x [n, k] -> [m, n]. Many rows are cut by rows, few by columns.
void linear(const float* x, const float* w, const float* bias, float* y, long m, long n, long k, Act act) {
  Pool& pool = Pool::get();
  if (tiles() != nullptr) {
    auto panels = scratch(packed_size(n, k));
    pack(w, panels.get(), n, k);
    packed_linear(x, {{panels.get(), bias, y, n}}, false, m, k, act);
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
  long size = m * n * k < ALONE ? n : blocks(blocks(n, 2L * pool.size()), 16) * 16;
  pool.run(blocks(n, size), [&](int i) {
    long first = i * size, columns = std::min(size, n - first);
    sgemm(ROWS, PLAIN, TURNED, m, columns, k, 1.0f, x, k, w + first * k, k, 0.0f, y + first, n);
    finish(y + first, bias == nullptr ? nullptr : bias + first, m, columns, n, act);
  });
}

void Attention::operator()(Heads q, Heads k, Heads v, const int32_t* real, float* out) const {
  long query_blocks = blocks(length, QUERY_BLOCK), keys_size = packed_size(length, width),
       values_size = packed_size(width, length);
  std::unique_ptr<float[]> keys, values;
  auto pack_head = [&](int i) {
    long row = i / groups, group = i % groups;
    const float* from = k.data + row * k.batch + group * k.head;
    for (long first = 0; first < length; first += PANEL) {
      pack_panel(from, k.row, length, width, first, keys.get() + i * keys_size + first * width);
    }
    pack_columns(v.data + row * v.batch + group * v.head, v.row, length, width, values.get() + i * values_size);
  };
  auto attend = [&](int job) {
    long row = job / (h * query_blocks), head = job / query_blocks % h, first = job % query_blocks * QUERY_BLOCK;
    long group = head / (h / groups), i = row * groups + group;
    Side key{k.data + row * k.batch + group * k.head, k.row, nullptr};
    Side value{v.data + row * v.batch + group * v.head, v.row, nullptr};
    if (keys != nullptr) {
      key.panels = keys.get() + i * keys_size;
      value.panels = values.get() + i * values_size;
    }
    block(
        q.data + row * q.batch + head * q.head, q.row, key, value, real == nullptr ? nullptr : real + row * length,
        out + row * length * h * width + head * width, first, std::min(length, first + QUERY_BLOCK));
  };
  if (tiles() != nullptr) {
    keys = scratch(b * groups * keys_size);
    values = scratch(b * groups * values_size);
    Pool::get().run(b * groups, pack_head, b * h * length * width < ALONE / 4);
  }
  Pool::get().run(b * h * query_blocks, attend, b * h * length * length * width < ALONE);
}

void Attention::block(
    const float* q, long q_row, Side k, Side v, const int32_t* keep, float* out, long first, long last) const {
  long out_row = h * width;
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
  bool holes = false;
  for (long i = low; keep != nullptr && i < high; i++) holes |= keep[i] == 0;
  if (keys <= 0) {
    for (long i = first; i < last; i++) std::fill_n(out + i * out_row, width, 0.0f);
    return;
  }
  long step = (blocks(keys, PANEL) + 1) * PANEL;  // room for weights to be computed a register at a time
  if (tiles() != nullptr && crowded(*tiles(), step)) step += PANEL;
  static thread_local std::vector<float> held;
  held.resize(std::max<size_t>(held.size(), rows * step));
  float *scores = held.data(), *to = out + first * out_row;
  const float* queries = q + first * q_row;
  if (k.panels != nullptr) {
    Rows from = readable(*tiles(), queries, q_row, rows, width, false);
    long whole = blocks(keys, PANEL) * PANEL;  // there is room for it, and nothing to be written apart
    multiply(*tiles(), from.data, from.step, k.panels + low * width, PANEL * width, scores, step, rows, whole, width);
  } else {
    sgemm(
        ROWS, PLAIN, TURNED, rows, keys, width, 1.0f, queries, q_row, k.data + low * k.row, k.row, 0.0f, scores, step);
  }
  float shares[QUERY_BLOCK];
  for (long i = 0; i < rows; i++) shares[i] = weigh(scores + i * step, first + i, low, high, keep, holes);
  if (v.panels != nullptr) {
    multiply(*tiles(), scores, step, v.panels + low * PANEL, PANEL * length, to, out_row, rows, width, keys);
  } else {
    sgemm(
        ROWS, PLAIN, PLAIN, rows, width, keys, 1.0f, scores, step, v.data + low * v.row, v.row, 0.0f, to, out_row);
  }
  for (long i = 0; i < rows; i++) multiply_by(to + i * out_row, width, shares[i]);
}

// Weights of the keys that this query may see, zero for the others; returns what makes them sum to one. Up to 15 numbers
// after a row of scores are overwritten.
float Attention::weigh(float* scores, long query, long low, long high, const int32_t* keep, bool holes) const {
  long from = window ? std::max(low, query - window + 1) : low;
  long to = window ? std::min(high, query + window) : high;
  to = causal ? std::min(to, query + 1) : to;
  if (holes) {
    while (from < to && keep[from] == 0) from++;
  }
  if (from >= to || (keep != nullptr && keep[query] == 0)) {
    std::fill_n(scores, high - low, 0.0f);
    return 0.0f;
  }
  // From the first key seen on, so that what lies before it, padding for one, does not change in which order they add up.
  float* seen = scores + (from - low);
  long count = to - from, whole = blocks(count, PANEL) * PANEL;
  std::fill(seen + count, seen + whole, -INFINITY);
  for (long i = 0; holes && i < count; i++) {
    if (keep[from + i] == 0) seen[i] = -INFINITY;
  }
  float sum = exponents(seen, whole, scale);
  for (long i = 0; holes && i < count; i++) {
    if (keep[from + i] == 0) seen[i] = 0.0f;
  }
  std::fill(scores, seen, 0.0f);
  std::fill(seen + count, scores + (high - low), 0.0f);
  return 1.0f / sum;
}

}  // namespace theodolite
