// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace saturate::kernels {
namespace {

const double* row(const void* base, int64_t r, int64_t stride, int64_t head, int64_t head_size) {
  return static_cast<const double*>(base) + r * stride + head * head_size;
}
double* row(void* base, int64_t r, int64_t stride, int64_t head, int64_t head_size) {
  return static_cast<double*>(base) + r * stride + head * head_size;
}

double dot(const double* a, const double* b, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// 0 or 1/(1-p): what the dropout multiplies p[i][j] with.
double kept(const AttentionArgs& a, int64_t h, int64_t i, int64_t j) {
  if (a.dropout == 0.0f) return 1;
  const uint64_t element =
      (static_cast<uint64_t>(h * a.q_rows + i) << 16) + static_cast<uint64_t>(j);
  const Random4 r = random_block(a.rng.state[0], a.rng.state[1], a.rng.op, element / 4);
  return r.x[element % 4] >= dropout_threshold(a.dropout) ? 1.0 / (1.0 - a.dropout) : 0.0;
}

// The scores of one query row, scaled; only keys the row may see.
std::vector<double> scores(const AttentionArgs& a, int64_t seq, int64_t h, int64_t i) {
  const int64_t kv = h / (a.heads / a.kv_heads), D = a.head_size;
  int64_t keys = a.cu_k[seq + 1] - a.cu_k[seq];
  if (a.causal) keys = std::min<int64_t>(keys, i - a.cu_q[seq] + 1);
  std::vector<double> s(static_cast<size_t>(keys));
  for (int64_t j = 0; j < keys; ++j)
    s[j] = static_cast<double>(a.scale) *
           dot(row(a.q, i, a.q_stride, h, D), row(a.k, a.cu_k[seq] + j, a.k_stride, kv, D), D);
  return s;
}

void zero_rows(void* base, int64_t from, int64_t to, int64_t stride, int64_t width) {
  for (int64_t r = from; r < to; ++r)
    std::fill_n(static_cast<double*>(base) + r * stride, width, 0.0);
}

}  // namespace

void attention_forward_reference(const AttentionArgs& a) {
  const int64_t D = a.head_size;
  auto* lse = static_cast<double*>(a.lse);
  zero_rows(a.o, 0, a.q_rows, a.o_stride, a.heads * D);
  std::fill_n(lse, a.heads * a.q_rows, 0.0);
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t seq = 0; seq < a.sequences; ++seq)
      for (int64_t i = a.cu_q[seq]; i < a.cu_q[seq + 1]; ++i) {
        const std::vector<double> s = scores(a, seq, h, i);
        lse[h * a.q_rows + i] = -std::numeric_limits<double>::infinity();
        if (s.empty()) continue;
        const double top = *std::max_element(s.begin(), s.end());
        double sum = 0;
        for (double x : s) sum += std::exp(x - top);
        lse[h * a.q_rows + i] = top + std::log(sum);
        double* o = row(a.o, i, a.o_stride, h, D);
        for (size_t j = 0; j < s.size(); ++j) {
          const double p = std::exp(s[j] - top) / sum * kept(a, h, i, static_cast<int64_t>(j));
          const double* v = row(a.v, a.cu_k[seq] + static_cast<int64_t>(j), a.v_stride,
                                h / (a.heads / a.kv_heads), D);
          for (int64_t d = 0; d < D; ++d) o[d] += p * v[d];
        }
      }
}

void attention_backward_reference(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  const int64_t D = a.head_size;
  const auto* lse = static_cast<const double*>(a.lse);
  zero_rows(b.d_q, 0, a.q_rows, b.d_q_stride, a.heads * D);
  zero_rows(b.d_k, 0, a.k_rows, b.d_k_stride, a.kv_heads * D);
  zero_rows(b.d_v, 0, a.k_rows, b.d_v_stride, a.kv_heads * D);
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t seq = 0; seq < a.sequences; ++seq)
      for (int64_t i = a.cu_q[seq]; i < a.cu_q[seq + 1]; ++i) {
        const int64_t kv = h / (a.heads / a.kv_heads);
        const std::vector<double> s = scores(a, seq, h, i);
        const double* d_o = row(b.d_o, i, a.o_stride, h, D);
        const double delta = dot(d_o, row(a.o, i, a.o_stride, h, D), D);
        for (size_t n = 0; n < s.size(); ++n) {
          const int64_t j = a.cu_k[seq] + static_cast<int64_t>(n);
          const double p = std::exp(s[n] - lse[h * a.q_rows + i]);
          const double keep = kept(a, h, i, static_cast<int64_t>(n));
          const double d_p = keep * dot(d_o, row(a.v, j, a.v_stride, kv, D), D);
          const double d_s = p * (d_p - delta) * static_cast<double>(a.scale);
          for (int64_t d = 0; d < D; ++d) {
            row(b.d_v, j, b.d_v_stride, kv, D)[d] += p * keep * d_o[d];
            row(b.d_q, i, b.d_q_stride, h, D)[d] += d_s * row(a.k, j, a.k_stride, kv, D)[d];
            row(b.d_k, j, b.d_k_stride, kv, D)[d] += d_s * row(a.q, i, a.q_stride, h, D)[d];
          }
        }
      }
}

}  // namespace saturate::kernels
