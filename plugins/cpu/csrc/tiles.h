// Blocks of a product whose sums stay in registers, for the processors we write them for. A word is one float32, or two
// neighbouring bfloat16 of a row: the sums are of float32 in either case.
#pragma once

namespace theodolite {

constexpr long PANEL = 16;  // columns of a packed weight that lie together: a cache line of words for every step

// y[rows, panels * 16] = x[rows, k] times `panels` panels of [k, 16], all counted in words; where `more`, sums go on from
// those in y. The panels at `next`, if any, are called up meanwhile.
struct Block {
  const float* x;
  long x_row;
  const float* panel;
  long panel_step;
  const float* next;
  float* y;
  long y_row;
  long k;
  bool more;
};

struct Tiles {
  long rows, panels;  // the largest block
  long depth;  // words of a row that are summed up at once: so that panels stay in a near cache, and for exactness
  void (*compute)(const Block& block, long rows, long panels);
};

// What this processor multiplies float32 and bfloat16 with best, or null.
const Tiles* tiles();
const Tiles* bf16_tiles();

// bfloat16, rounded to nearest and even, where `bf16_tiles`.
void to_bf16(const float* x, float* words, long count);

const Tiles* avx2_tiles();
const Tiles* avx512_tiles();
const Tiles* avx512_bf16_tiles();

}  // namespace theodolite
