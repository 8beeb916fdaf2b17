// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "base/dtype.h"
#include "kernels/activation/activation.h"

namespace saturate::kernels {

struct FoldList;  // kernels/device/fold_columns.h

enum class EpilogueKind : uint8_t { plain, activation, gated, derivative, gated_derivative };

// What a product does with its sums before it stores them. With v = alpha op(A) op(B) + bias and
// f the activation:
//
//   plain             D[m][n] = v + beta C
//   activation        D[m][n] = f(v) + beta C;                  aux[m][n] = v unless aux is null
//   gated             D[m][n] = f(v[m][n]) v[m][N + n] + beta C; aux[m][2N] = v unless aux is null
//   derivative        D[m][n] = v f'(aux[m][n]) + beta C
//   gated_derivative  D[m][n]     = v[m][n] aux[m][N + n] f'(aux[m][n]) + beta C[m][n],
//                     D[m][N + n] = v[m][n] f(aux[m][n]) + beta C[m][N + n]
//
// A residual is C with beta 1 and a pointer apart from D.
//
// Shapes    N is MatmulArgs::n. gated: op(B) is (k, 2N) and bias (2N), gate first, then up, as
//           ActivationArgs; D and C (m, N). gated_derivative: op(B) is (k, N), D and C (m, 2N).
//           aux (m, N), of the gated kinds (m, 2N), leading dimension ld_aux.
//           column_sum[j] = sum over m (and the batch) of D[m][j], one a column of D: with a
//           derivative kind and beta 0 the gradient of the layer's bias. On GPUs it is made of
//           sums of rows, at `partial`, which has room for (ceil(m / kSummedRows), n) of fp32, and
//           the second stage left to `later`; a kernel may do both at once in its workspace.
// Types     aux in d_type; column_sum in fp32, of the fp32 values before they round to d_type.
//           Of the values that aux holds the forward pass uses the unrounded ones. For relu's slope
//           aux may as well be the activation's result, which is positive where its input is.
//           With `slopes` (activation and derivative, on GPUs) aux holds f'(v) instead of v. With
//           `bits` (the same, of relu) it holds one bit an element, whether v > 0: (m, n / 64) words of
//           64 bits, n a multiple of 64, ld_aux in words. Which bit is whose is the kernels' own.
// Aliasing  aux may be D only where it is read (derivative); nothing else may overlap. aux and
//           column_sum take no batch beyond 1.
struct Epilogue {
  static constexpr int64_t kSummedRows = 64;
  EpilogueKind kind = EpilogueKind::plain;
  ActivationKind activation = ActivationKind::relu;
  void* aux = nullptr;  // written by activation and gated, read by the derivatives
  int64_t ld_aux = 0;
  float* column_sum = nullptr;  // null: not wanted
  bool add_to_column_sum = false;
  float* partial = nullptr;
  FoldList* later = nullptr;  // null: the second stage runs at once
  bool slopes = false;
  bool bits = false;

  bool writes_aux() const {
    return (kind == EpilogueKind::activation || kind == EpilogueKind::gated) && aux != nullptr;
  }
  bool reads_aux() const {
    return kind == EpilogueKind::derivative || kind == EpilogueKind::gated_derivative;
  }
  bool is_plain() const { return kind == EpilogueKind::plain && column_sum == nullptr; }
  // Widths for a product of n columns: of op(B) and bias, of D and C, of aux.
  int64_t product_columns(int64_t n) const { return kind == EpilogueKind::gated ? 2 * n : n; }
  int64_t output_columns(int64_t n) const {
    return kind == EpilogueKind::gated_derivative ? 2 * n : n;
  }
  int64_t aux_columns(int64_t n) const {
    if (bits) return n / 64;
    return kind == EpilogueKind::gated || kind == EpilogueKind::gated_derivative ? 2 * n : n;
  }
};

}  // namespace saturate::kernels
