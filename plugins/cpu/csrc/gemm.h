// Matrix products by a register tile of our own for processors with AVX2 and FMA. Weights are packed once a call and
// shared by all blocks of rows, rows are read where they lie; so no thread packs what another has packed already.
// On AVX-512 OpenBLAS's own tiles are wider and as fast as the processor allows: it is left to compute there.
#pragma once

namespace theodolite {

constexpr long PANEL = 16, TILE = 6;

// Whether this processor is better served by these functions than by OpenBLAS.
bool tiles();

// Numbers that `pack` writes for n rows of k.
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
    const float* x, long x_row, const float* panels, long panel_step, float* y, long y_row, long m, long columns,
    long k);

}  // namespace theodolite
