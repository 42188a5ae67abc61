// Matrix products by register tiles of our own. Weights are packed once and shared by all blocks of rows, rows are read
// where they lie; so no thread packs what another has packed already.
#pragma once

#include "tiles.h"

namespace theodolite {

constexpr long FEW = 24;  // rows of a product that waits for its weights more than it computes

// Words that `pack` writes for n rows of k.
inline long packed_size(long n, long k) {
  return (n + PANEL - 1) / PANEL * PANEL * k;
}

// One panel: the 16 rows of w from `first` on (zeros beyond n), turned to [k, 16].
void pack_panel(const float* w, long w_row, long n, long k, long first, float* panel);

// All panels of v [k, n], whose columns are the columns of the panels: [k, 16] each, zeros beyond n.
void pack_columns(const float* v, long v_row, long k, long n, float* panels);

// y[m, columns] = x[m, k] times panels of [k, 16], `panel_step` apart. Columns beyond `columns` in the last panel are
// computed, but not written.
void multiply(
    const Tiles& tiles, const float* x, long x_row, const float* panels, long panel_step, float* y, long y_row, long m,
    long columns, long k);

}  // namespace theodolite
