// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/reference.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "kernels/attention/dropout.h"

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

// 0 or 1/(1-p): what the dropout multiplies p[i][j] with, i and j from the sequence's first row on.
double kept(const AttentionArgs& a, int64_t h, int64_t first_row, int64_t i, int64_t j) {
  if (a.dropout == 0.0f) return 1;
  const int64_t rows = a.rng.rows > 0 ? a.rng.rows : a.q_rows;
  const int64_t first = (a.rng.first_column + h) * rows + a.rng.first_row;
  const bool keeps =
      attention_dropout_keeps(a.rng.state[0], a.rng.state[1], a.rng.site,
                              attention_dropout_least(a.dropout), first + first_row, i, j);
  return keeps ? 1.0 / (1.0 - a.dropout) : 0.0;
}

// One (sequence, head): where its rows begin and how a query stands among the keys.
struct Place {
  int64_t sequence, head, kv;
  int64_t q0, queries, k0, keys;

  Place(const AttentionArgs& a, int64_t s, int64_t h)
      : sequence(s),
        head(h),
        kv(h / (a.heads / a.kv_heads)),
        q0(a.cu_q[s]),
        queries(a.cu_q[s + 1] - q0),
        k0(a.cu_k[s]),
        keys(a.cu_k[s + 1] - k0) {}
  int64_t aligned(const AttentionArgs& a, int64_t i) const {
    return a.alignment == CausalAlignment::bottom_right ? i + keys - queries : i;
  }
};

bool sees(const AttentionArgs& a, const Place& at, int64_t i, int64_t j) {
  const int64_t place = at.aligned(a, i);
  if (a.causal && j > place) return false;
  if (a.window_left != kUnlimitedWindow && j < place - a.window_left) return false;
  if (a.window_right != kUnlimitedWindow && j > place + a.window_right) return false;
  if (a.block_mask == nullptr) return true;
  const int64_t m = i / a.block_size, n = j / a.block_size;
  const uint32_t word =
      a.block_mask[at.sequence * a.block_mask_sequence_stride + at.head * a.block_mask_head_stride +
                   m * attention_block_mask_words(a) + n / 32];
  return (word >> (n % 32) & 1u) != 0;
}

double bias(const AttentionArgs& a, const Place& at, int64_t i, int64_t j) {
  if (a.bias == nullptr) return 0;
  const int64_t n = at.sequence * a.bias_sequence_stride + at.head * a.bias_head_stride +
                    i * a.bias_row_stride + j;
  return a.bias_dtype == DType::f64 ? static_cast<const double*>(a.bias)[n]
                                    : static_cast<double>(static_cast<const float*>(a.bias)[n]);
}

double of_head(const void* values, const Place& at) {
  return values == nullptr ? 0 : static_cast<const double*>(values)[at.head];
}

struct Score {
  double value, cap_slope;  // the score, and the derivative of the cap at it
};

// Minus infinity for a key that may not be seen.
Score score(const AttentionArgs& a, const Place& at, const double* q, const double* k, int64_t i,
            int64_t j) {
  if (!sees(a, at, i, j)) return {-std::numeric_limits<double>::infinity(), 0};
  double s = static_cast<double>(a.scale) * dot(q, k, a.head_size), slope = 1;
  if (a.soft_cap > 0.0f) {
    const double cap = static_cast<double>(a.soft_cap), t = std::tanh(s / cap);
    s = cap * t, slope = 1 - t * t;
  }
  s += bias(a, at, i, j);
  s -= of_head(a.alibi_slopes, at) * static_cast<double>(std::llabs(at.aligned(a, i) - j));
  return {s, slope};
}

// Rotates one head in place by `position` (attention.h's R), or back.
void rotate(double* x, int64_t D, double base, double position) {
  for (int64_t d = 0; d < D / 2; ++d) {
    const double angle =
        position * std::pow(base, -2.0 * static_cast<double>(d) / static_cast<double>(D));
    const double low = x[d], high = x[d + D / 2];
    x[d] = low * std::cos(angle) - high * std::sin(angle);
    x[d + D / 2] = high * std::cos(angle) + low * std::sin(angle);
  }
}

// Rotates all rows of all sequences by their positions times `sign`.
void rotate_all(const AttentionArgs& a, double* q, int64_t q_stride, double* k, int64_t k_stride,
                double sign) {
  const double base = static_cast<double>(a.rotary_base);
  for (int64_t s = 0; s < a.sequences; ++s) {
    const Place at(a, s, 0);
    for (int64_t i = 0; i < at.queries; ++i)
      for (int64_t h = 0; h < a.heads; ++h)
        rotate(q + (at.q0 + i) * q_stride + h * a.head_size, a.head_size, base,
               sign * static_cast<double>(at.aligned(a, i)));
    for (int64_t j = 0; j < at.keys; ++j)
      for (int64_t h = 0; h < a.kv_heads; ++h)
        rotate(k + (at.k0 + j) * k_stride + h * a.head_size, a.head_size, base,
               sign * static_cast<double>(j));
  }
}

// The arguments with q and k replaced by rotated copies.
struct Rotated {
  AttentionArgs args;
  std::vector<double> q, k;

  explicit Rotated(const AttentionArgs& a) : args(a) {
    if (a.rotary_base == 0.0f) return;
    const auto copy = [](const void* from, int64_t rows, int64_t stride, int64_t width) {
      const auto* x = static_cast<const double*>(from);
      std::vector<double> dense(static_cast<size_t>(rows * width));
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(x + r * stride, width, dense.data() + r * width);
      return dense;
    };
    const int64_t q_width = a.heads * a.head_size, k_width = a.kv_heads * a.head_size;
    q = copy(a.q, a.q_rows, a.q_stride, q_width);
    k = copy(a.k, a.k_rows, a.k_stride, k_width);
    rotate_all(a, q.data(), q_width, k.data(), k_width, 1);
    args.q = q.data(), args.q_stride = q_width;
    args.k = k.data(), args.k_stride = k_width;
  }
};

void zero_rows(void* base, int64_t from, int64_t to, int64_t stride, int64_t width) {
  for (int64_t r = from; r < to; ++r)
    std::fill_n(static_cast<double*>(base) + r * stride, width, 0.0);
}

// Calls item(place, i) for every query of every sequence and head.
template <class Item>
void for_each_query(const AttentionArgs& a, const Item& item) {
  for (int64_t h = 0; h < a.heads; ++h)
    for (int64_t s = 0; s < a.sequences; ++s) {
      const Place at(a, s, h);
      for (int64_t i = 0; i < at.queries; ++i) item(at, i);
    }
}

void forward_row(const AttentionArgs& a, const Place& at, int64_t i) {
  const int64_t D = a.head_size, V = attention_v_head_size(a), r = at.q0 + i;
  std::vector<double> s(static_cast<size_t>(at.keys));
  double top = a.sinks ? of_head(a.sinks, at) : -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < at.keys; ++j) {
    s[j] = score(a, at, row(a.q, r, a.q_stride, at.head, D),
                 row(a.k, at.k0 + j, a.k_stride, at.kv, D), i, j)
               .value;
    top = std::max(top, s[j]);
  }
  double& lse = static_cast<double*>(a.lse)[at.head * a.q_rows + r];
  lse = top;
  if (std::isinf(top)) return;  // no key to see
  double sum = a.sinks ? std::exp(of_head(a.sinks, at) - top) : 0;
  for (double x : s) sum += std::exp(x - top);
  lse = top + std::log(sum);
  double* o = row(a.o, r, a.o_stride, at.head, V);
  for (int64_t j = 0; j < at.keys; ++j) {
    const double p = std::exp(s[j] - top) / sum * kept(a, at.head, at.q0, i, j);
    const double* v = row(a.v, at.k0 + j, a.v_stride, at.kv, V);
    for (int64_t d = 0; d < V; ++d) o[d] += p * v[d];
  }
}

// Calls visit(term) for the keys of one query; `a` has q and k rotated.
template <class Visit>
void visit_row(const AttentionBackwardArgs& b, const AttentionArgs& a, const Place& at, int64_t i,
               const Visit& visit) {
  const int64_t D = a.head_size, V = attention_v_head_size(a), r = at.q0 + i;
  const double lse = static_cast<const double*>(a.lse)[at.head * a.q_rows + r];
  if (std::isinf(lse)) return;
  AttentionTerm t;
  t.sequence = at.sequence, t.head = at.head, t.kv_head = at.kv, t.i = i, t.q_row = r;
  t.q = row(a.q, r, a.q_stride, at.head, D);
  t.o = row(a.o, r, a.o_stride, at.head, V);
  t.d_o = row(b.d_o, r, a.o_stride, at.head, V);
  t.delta = dot(t.d_o, t.o, V);
  for (t.j = 0; t.j < at.keys; ++t.j) {
    t.k_row = at.k0 + t.j;
    t.k = row(a.k, t.k_row, a.k_stride, at.kv, D);
    t.v = row(a.v, t.k_row, a.v_stride, at.kv, V);
    const Score s = score(a, at, t.q, t.k, i, t.j);
    t.product = static_cast<double>(a.scale) * dot(t.q, t.k, D);
    t.score = s.value, t.cap_slope = s.cap_slope;
    t.p = std::exp(s.value - lse);
    if (t.p == 0) continue;
    t.keep = kept(a, at.head, at.q0, i, t.j);
    t.d_p = t.keep * dot(t.d_o, t.v, V);
    t.d_score = t.p * (t.d_p - t.delta);
    t.distance = static_cast<double>(std::llabs(at.aligned(a, i) - t.j));
    visit(t);
  }
}

void add_gradients(const AttentionBackwardArgs& b, const AttentionTerm& t) {
  const AttentionArgs& a = b.forward;
  const int64_t D = a.head_size, V = attention_v_head_size(a);
  const double d_dot = t.d_score * t.cap_slope * static_cast<double>(a.scale);
  if (b.d_bias)
    static_cast<double*>(
        b.d_bias)[t.sequence * b.d_bias_sequence_stride + t.head * b.d_bias_head_stride +
                  t.i * b.d_bias_row_stride + t.j] += t.d_score;
  if (b.d_alibi_slopes) static_cast<double*>(b.d_alibi_slopes)[t.head] -= t.d_score * t.distance;
  double* d_v = row(b.d_v, t.k_row, b.d_v_stride, t.kv_head, V);
  double* d_q = row(b.d_q, t.q_row, b.d_q_stride, t.head, D);
  double* d_k = row(b.d_k, t.k_row, b.d_k_stride, t.kv_head, D);
  for (int64_t d = 0; d < V; ++d) d_v[d] += t.p * t.keep * t.d_o[d];
  for (int64_t d = 0; d < D; ++d) {
    d_q[d] += d_dot * t.k[d];
    d_k[d] += d_dot * t.q[d];
  }
}

// The sink's score gets no value, so its gradient is -p delta.
void add_sink_gradient(const AttentionBackwardArgs& b, const Place& at, int64_t i) {
  const AttentionArgs& a = b.forward;
  const int64_t V = attention_v_head_size(a), r = at.q0 + i;
  const double lse = static_cast<const double*>(a.lse)[at.head * a.q_rows + r];
  static_cast<double*>(b.d_sinks)[at.head] -=
      std::exp(of_head(a.sinks, at) - lse) *
      dot(row(b.d_o, r, a.o_stride, at.head, V), row(a.o, r, a.o_stride, at.head, V), V);
}

void zero_bias_gradient(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  for (int64_t s = 0; s < (b.d_bias_sequence_stride ? a.sequences : 1); ++s)
    for (int64_t h = 0; h < (b.d_bias_head_stride ? a.heads : 1); ++h)
      for (int64_t i = 0; i < (b.d_bias_row_stride ? a.max_q : 1); ++i)
        std::fill_n(static_cast<double*>(b.d_bias) + s * b.d_bias_sequence_stride +
                        h * b.d_bias_head_stride + i * b.d_bias_row_stride,
                    a.max_k, 0.0);
}

}  // namespace

void attention_forward_reference(const AttentionArgs& args) {
  const Rotated rotated(args);
  const AttentionArgs& a = rotated.args;
  zero_rows(a.o, 0, a.q_rows, a.o_stride, a.heads * attention_v_head_size(a));
  std::fill_n(static_cast<double*>(a.lse), a.heads * a.q_rows, 0.0);
  for_each_query(a, [&](const Place& at, int64_t i) { forward_row(a, at, i); });
}

void attention_backward_reference(const AttentionBackwardArgs& b) {
  const Rotated rotated(b.forward);
  const AttentionArgs& a = rotated.args;
  zero_rows(b.d_q, 0, a.q_rows, b.d_q_stride, a.heads * a.head_size);
  zero_rows(b.d_k, 0, a.k_rows, b.d_k_stride, a.kv_heads * a.head_size);
  zero_rows(b.d_v, 0, a.k_rows, b.d_v_stride, a.kv_heads * attention_v_head_size(a));
  if (b.d_bias) zero_bias_gradient(b);
  if (b.d_alibi_slopes) std::fill_n(static_cast<double*>(b.d_alibi_slopes), a.heads, 0.0);
  if (b.d_sinks) std::fill_n(static_cast<double*>(b.d_sinks), a.heads, 0.0);
  for_each_query(a, [&](const Place& at, int64_t i) {
    visit_row(b, a, at, i, [&](const AttentionTerm& t) { add_gradients(b, t); });
    if (b.d_sinks) add_sink_gradient(b, at, i);
  });
  if (a.rotary_base > 0.0f)
    rotate_all(a, static_cast<double*>(b.d_q), b.d_q_stride, static_cast<double*>(b.d_k),
               b.d_k_stride, -1);
}

void attention_visit_reference(const AttentionBackwardArgs& b,
                               const std::function<void(const AttentionTerm&)>& visit) {
  const Rotated rotated(b.forward);
  for_each_query(rotated.args,
                 [&](const Place& at, int64_t i) { visit_row(b, rotated.args, at, i, visit); });
}

}  // namespace saturate::kernels
