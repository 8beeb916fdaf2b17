// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <vector>

#include "base/half.h"
#include "kernels/host/vector_math.h"
#include "kernels/optimizer/adafactor_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

// f(piece, tensor, first row, row behind the last) for each piece.
template <class F>
void for_pieces(const AdafactorArgs& x, const F& f) {
  parallel_for(x.piece_count, 1, [&](int64_t first, int64_t last) {
    for (int64_t p = first; p < last; ++p) {
      const AdafactorTensor& t = x.tensors[x.pieces[p].tensor];
      f(p, t, x.pieces[p].row, std::min(x.pieces[p].row + kAdafactorRows, t.rows));
    }
  });
}

template <class T>
void sums_of(const AdafactorArgs& x) {
  const AdafactorStep<T> step = adafactor_step<T>(x);
  std::fill_n(x.sums, x.factor_count, 0.0);
  if (!step.adamw.good) return;
  const double scale = static_cast<double>(step.adamw.gradient);
  for_pieces(x, [&](int64_t p, const AdafactorTensor& t, int64_t first, int64_t last) {
    const T* grad = static_cast<const T*>(x.grad) + t.grad;
    double* columns = adafactor_partials(x) + x.pieces[p].partial;
    if (t.rows > 1) std::fill_n(columns, t.cols, 0.0);
    for (int64_t r = first; r < last; ++r) {
      const auto [begin, end] = adafactor_span(t, r);
      const T* g = grad + r * t.cols;
      const auto square = [&](int64_t c) {
        const double v = static_cast<double>(g[c]) * scale;
        return v * v;
      };
      if (t.rows == 1) {
        for (int64_t c = begin; c < end; ++c) x.sums[t.factors + c] = square(c);
        continue;
      }
      for (int64_t c = begin; c < end; ++c) columns[c] += square(c);
      if (begin < end)
        x.sums[t.factors + r] =
            lane_sum<double>(end - begin, [&](int64_t i) { return square(begin + i); });
    }
  });
  parallel_for(x.tensor_count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const AdafactorTensor& t = x.tensors[i];
      if (t.rows == 1) continue;
      for (int64_t p = 0; p < t.pieces; ++p) {
        const double* columns = adafactor_partials(x) + t.partial + p * t.cols;
        double* sums = x.sums + t.factors + t.rows;
        for (int64_t c = 0; c < t.cols; ++c) sums[c] += columns[c];
      }
    }
  });
}

// Rows, columns or a vector's moments, and the mean of rows.
template <class T>
void moments_of(const AdafactorArgs& x, const AdafactorStep<T>& step) {
  T* factors = static_cast<T*>(x.factors);
  parallel_for(x.tensor_count, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      const AdafactorTensor& t = x.tensors[i];
      const auto update = [&](int64_t at, int64_t count, int64_t over) {
        for (int64_t k = at; k < at + count; ++k)
          factors[k] =
              adafactor_moment(step.keep, factors[k], x.sums[k] / static_cast<double>(over));
      };
      if (t.rows == 1) {
        update(t.factors, t.cols, 1);
        continue;
      }
      update(t.factors, t.rows, t.cols);
      update(t.factors + t.rows, t.cols, t.rows);
      adafactor_means(x)[i] =
          lane_sum<double>(t.rows,
                           [&](int64_t r) { return static_cast<double>(factors[t.factors + r]); }) /
          static_cast<double>(t.rows);
    }
  });
}

template <class T>
void measure_of(const AdafactorArgs& x) {
  const AdafactorStep<T> step = adafactor_step<T>(x);
  std::fill_n(x.totals, 2 * x.tensor_count, 0.0);
  if (!step.adamw.good) return;
  moments_of(x, step);
  const T* factors = static_cast<const T*>(x.factors);
  double* squares = adafactor_squares(x);
  for_pieces(x, [&](int64_t p, const AdafactorTensor& t, int64_t first, int64_t last) {
    const T* columns = factors + adafactor_columns(t);
    const double mean = adafactor_means(x)[x.pieces[p].tensor];
    double of_update = 0, of_weights = 0;
    for (int64_t r = first; r < last; ++r) {
      const auto [begin, end] = adafactor_span(t, r);
      if (begin >= end) continue;
      const T row = step.adamw.gradient * adafactor_row(t, factors, mean, r);
      const T* g = static_cast<const T*>(x.grad) + t.grad + r * t.cols + begin;
      const T* w = static_cast<const T*>(x.master) + t.master + r * t.cols + begin;
      of_update += lane_sum<double>(end - begin, [&](int64_t c) {
        const double u = static_cast<double>(g[c] * row / root(columns[begin + c]));
        return u * u;
      });
      of_weights += lane_sum<double>(end - begin, [&](int64_t c) {
        return static_cast<double>(w[c]) * static_cast<double>(w[c]);
      });
    }
    squares[2 * p] = of_update;
    squares[2 * p + 1] = of_weights;
  });
  for (int64_t i = 0; i < x.tensor_count; ++i) {
    const AdafactorTensor& t = x.tensors[i];
    for (int64_t p = t.first_piece; p < t.first_piece + t.pieces; ++p)
      for (int64_t k = 0; k < 2; ++k) x.totals[2 * i + k] += squares[2 * p + k];
  }
}

template <class T>
void apply_of(const AdafactorArgs& x) {
  const AdafactorStep<T> step = adafactor_step<T>(x);
  if (!step.adamw.good) return;
  const T* factors = static_cast<const T*>(x.factors);
  const T keep = step.adamw.ema;
  for_pieces(x, [&](int64_t p, const AdafactorTensor& t, int64_t first, int64_t last) {
    const int64_t number = x.pieces[p].tensor;
    const AdafactorSize<T> size = adafactor_size(x, t, step, x.totals + 2 * number);
    const T* columns = factors + adafactor_columns(t);
    for (int64_t r = first; r < last; ++r) {
      const auto [begin, end] = adafactor_span(t, r);
      const T row = size.update * step.adamw.gradient *
                    adafactor_row(t, factors, adafactor_means(x)[number], r);
      const T* __restrict g = static_cast<const T*>(x.grad) + t.grad + r * t.cols;
      T* __restrict w = static_cast<T*>(x.master) + t.master + r * t.cols;
      for (int64_t c = begin; c < end; ++c)
        w[c] -= g[c] * row / root(columns[c]) + size.decay * w[c];
      if (x.ema != nullptr) {
        T* ema = static_cast<T*>(x.ema) + t.master + r * t.cols;
        for (int64_t c = begin; c < end; ++c) ema[c] = keep * ema[c] + (T(1) - keep) * w[c];
      }
      if (x.compute == nullptr) continue;
      auto* compute = static_cast<uint16_t*>(x.compute) + t.compute + r * t.cols;
      const bool bf16 = x.compute_type == DType::bf16;
      for (int64_t c = begin; c < end; ++c) {
        const auto value = static_cast<float>(w[c]);
        compute[c] = bf16 ? to_bf16(value).bits : to_f16(value).bits;
      }
    }
  });
}

}  // namespace

void adafactor_sums_cpu(const Context&, const AdafactorArgs& x) {
  x.dtype == DType::f64 ? sums_of<double>(x) : sums_of<float>(x);
}
void adafactor_measure_cpu(const Context&, const AdafactorArgs& x) {
  x.dtype == DType::f64 ? measure_of<double>(x) : measure_of<float>(x);
}
void adafactor_apply_cpu(const Context&, const AdafactorArgs& x) {
  x.dtype == DType::f64 ? apply_of<double>(x) : apply_of<float>(x);
}

}  // namespace saturate::kernels
