// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/embedding/embedding_impl.h"
#include "kernels/host/dropout.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

constexpr int64_t kRowGrain = 32;

// Row of the table that batch row t takes; -1: the table does not have it.
int64_t table_row(const EmbeddingArgs& x, int64_t t) {
  const int64_t row = x.ids != nullptr ? x.ids[t] - x.first_id : t;
  return row >= 0 && row < x.vocab ? row : -1;
}

template <class T>
void forward(const EmbeddingArgs& x) {
  const HostDropout dropout(x.rng, x.dropout);
  const T scale = static_cast<T>(x.scale);
  parallel_for(x.rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      T* y = static_cast<T*>(x.y) + t * x.cols;
      if (const int64_t taken = table_row(x, t); taken >= 0) {
        const T* row = static_cast<const T*>(x.table) + taken * x.cols;
        for (int64_t c = 0; c < x.cols; ++c) y[c] = scale * row[c];
      } else {
        std::fill_n(y, x.cols, T{0});
      }
      if (x.position_table != nullptr) {
        const int64_t p = std::clamp<int64_t>(x.positions[t], 0, x.max_positions - 1);
        const T* row = static_cast<const T*>(x.position_table) + p * x.cols;
        for (int64_t c = 0; c < x.cols; ++c) y[c] += row[c];
      }
      if (!dropout.active()) continue;
      T factors[HostDropout::kChunk];
      for (int64_t c = 0; c < x.cols; c += HostDropout::kChunk) {
        const int64_t n = std::min(x.cols - c, HostDropout::kChunk);
        dropout.factors(dropout.row(t) + c, n, factors);
        for (int64_t i = 0; i < n; ++i) y[c + i] *= factors[i];
      }
    }
  });
}

// sum[c] += scale * drop'(d_y[t][c]) for row t of the batch, if d_y has it.
template <class T>
void add_row(const EmbeddingBackwardArgs& x, const HostDropout& dropout, int64_t t, T scale,
             T* sum) {
  const int64_t cols = x.forward.cols;
  t -= x.first_row;
  if (t < 0 || t >= x.forward.rows) return;
  const T* d_y = static_cast<const T*>(x.d_y) + t * cols;
  if (!dropout.active()) {
    for (int64_t c = 0; c < cols; ++c) sum[c] += scale * d_y[c];
    return;
  }
  T factors[HostDropout::kChunk];
  for (int64_t c = 0; c < cols; c += HostDropout::kChunk) {
    const int64_t n = std::min(cols - c, HostDropout::kChunk);
    dropout.factors(dropout.row(t) + c, n, factors);
    for (int64_t i = 0; i < n; ++i) sum[c + i] += scale * factors[i] * d_y[c + i];
  }
}

template <class T>
void zero_rows(T* table, int64_t rows, int64_t cols) {
  parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    std::fill(table + begin * cols, table + end * cols, T{0});
  });
}

template <class T>
void table_backward(const EmbeddingBackwardArgs& x, const HostDropout& dropout) {
  const EmbeddingArgs& f = x.forward;
  T* d_table = static_cast<T*>(x.d_table);
  if (!x.accumulate) zero_rows(d_table, f.vocab, f.cols);
  const int64_t valid = f.rows > 0 ? std::min<int64_t>(*x.valid_rows, x.batch_rows) : 0;
  // Who holds the first entry of a run of equal ids sums the whole run, so each table row has one
  // owner.
  parallel_for(valid, kRowGrain, [&](int64_t begin, int64_t end) {
    const auto id_at = [&](int64_t i) { return f.ids[x.order[i]]; };
    int64_t i = begin;
    while (i < end && i > 0 && id_at(i) == id_at(i - 1)) ++i;
    if (i == end) return;
    for (; i < end || (i < valid && i > begin && id_at(i) == id_at(i - 1)); ++i) {
      if (const int64_t row = table_row(f, x.order[i]); row >= 0)
        add_row(x, dropout, x.order[i], static_cast<T>(f.scale), d_table + row * f.cols);
    }
  });
  if (x.zero_row >= 0) std::fill_n(d_table + x.zero_row * f.cols, f.cols, T{0});
}

template <class T>
void position_backward(const EmbeddingBackwardArgs& x, const HostDropout& dropout) {
  const EmbeddingArgs& f = x.forward;
  T* d_position = static_cast<T*>(x.d_position_table);
  if (!x.accumulate_positions) zero_rows(d_position, f.max_positions, f.cols);
  parallel_for(f.max_positions, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      for (int64_t s = 0; s < x.sequences; ++s) {
        // Positions beyond the table were clamped to its last row.
        const int64_t last = p == f.max_positions - 1
                                 ? x.cu[s + 1]
                                 : std::min<int64_t>(x.cu[s] + p + 1, x.cu[s + 1]);
        for (int64_t t = x.cu[s] + p; t < last; ++t)
          add_row(x, dropout, t, T{1}, d_position + p * f.cols);
      }
    }
  });
}

template <class T>
void backward(const EmbeddingBackwardArgs& x) {
  const HostDropout dropout(x.forward.rng, x.forward.dropout);
  if (x.d_table != nullptr) table_backward<T>(x, dropout);
  if (x.d_position_table != nullptr) position_backward<T>(x, dropout);
}

}  // namespace

void embedding_forward_cpu(const Context&, const EmbeddingArgs& args) {
  args.dtype == DType::f64 ? forward<double>(args) : forward<float>(args);
}
void embedding_backward_cpu(const Context&, const EmbeddingBackwardArgs& args) {
  args.forward.dtype == DType::f64 ? backward<double>(args) : backward<float>(args);
}

}  // namespace saturate::kernels
