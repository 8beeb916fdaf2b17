// SPDX-License-Identifier: Apache-2.0
// One task takes one head of one sequence, token after token.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/mixers/linear_attention/linear_attention_impl.h"
#include "runtime/parallel_for.h"

namespace saturate::model {
namespace {

template <class T>
T feature(T x) {
  return x > T(0) ? x + T(1) : std::exp(x);
}
// f'(x) as a function of f(x): 1 above zero, exp(x) = f(x) below.
template <class T>
T slope(T feature) {
  return std::min(feature, T(1));
}

// In lanes, so that it vectorises; the order of the sum depends on n alone.
template <class T>
T dot(const T* a, const T* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  T lane[kLanes] = {}, tail = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lane[l] += a[i + l] * b[i + l];
  }
  for (; i < n; ++i) tail += a[i] * b[i];
  for (T x : lane) tail += x;
  return tail;
}

// y += scale * x
template <class T>
void add(T* y, T scale, const T* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] += scale * x[i];
}

// One head of a packed projection, and the scratch of a task.
template <class T>
class Head {
 public:
  Head(const LinearAttentionArgs& a, int64_t head)
      : D(a.head_size),
        width_(a.heads * a.head_size),
        column_(head * a.head_size),
        qkv_(static_cast<const T*>(a.qkv)),
        state(static_cast<size_t>(D * (D + 1))),
        fq(static_cast<size_t>(D)),
        fk(fq),
        v(static_cast<size_t>(D + 1), T(1)),
        g(v) {}

  void load(int64_t row) {
    const T* q = qkv_ + row * 3 * width_ + column_;
    for (int64_t d = 0; d < D; ++d) fq[d] = feature(q[d]), fk[d] = feature(q[width_ + d]);
    std::copy_n(q + 2 * width_, D, v.begin());
  }
  // The gradients of the numerator's D columns and, in the last, of the denominator.
  void load_gradient(const LinearAttentionBackwardArgs& a, int64_t row, T denominator) {
    const T* d_o = static_cast<const T*>(a.d_o) + row * width_ + column_;
    const T* o = static_cast<const T*>(a.forward.o) + row * width_ + column_;
    for (int64_t c = 0; c < D; ++c) g[c] = d_o[c] / denominator;
    g[D] = -dot(d_o, o, D) / denominator;
  }
  // state[d][c] += left[d] * right[c]
  void take_in(const std::vector<T>& left, const std::vector<T>& right) {
    for (int64_t d = 0; d < D; ++d) add(row_of(d), left[d], right.data(), D + 1);
  }
  T* row_of(int64_t d) { return state.data() + d * (D + 1); }
  T* output(void* o, int64_t row) const { return static_cast<T*>(o) + row * width_ + column_; }
  // Part 0 is q, 1 k, 2 v.
  T* gradient(void* d_qkv, int64_t row, int64_t part) const {
    return static_cast<T*>(d_qkv) + (row * 3 + part) * width_ + column_;
  }

  const int64_t D;

 private:
  int64_t width_, column_;
  const T* qkv_;

 public:
  std::vector<T> state, fq, fk, v, g;  // v and g have D + 1 columns; the last of v is 1
};

// o from the state and f(q); returns the denominator.
template <class T>
T read_out(Head<T>& h, T* o) {
  T denominator = static_cast<T>(kLinearAttentionEps);
  std::fill_n(o, h.D, T(0));
  for (int64_t d = 0; d < h.D; ++d) {
    add(o, h.fq[d], h.row_of(d), h.D);
    denominator += h.fq[d] * h.row_of(d)[h.D];
  }
  for (int64_t c = 0; c < h.D; ++c) o[c] /= denominator;
  return denominator;
}

template <class Body>
void for_each_head(const LinearAttentionArgs& a, const Body& body) {
  parallel_for(a.sequences * a.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(i / a.heads, i % a.heads);
  });
}

template <class T>
void forward(const LinearAttentionArgs& a) {
  T* denominators = static_cast<T*>(a.denominator);
  for_each_head(a, [&](int64_t s, int64_t head) {
    Head<T> h(a, head);
    for (int64_t r = a.cu[s]; r < a.cu[s + 1]; ++r) {
      h.load(r);
      h.take_in(h.fk, h.v);
      denominators[head * a.rows + r] = read_out(h, h.output(a.o, r));
    }
  });
  const int64_t used = a.cu[a.sequences], width = a.heads * a.head_size;
  std::fill_n(static_cast<T*>(a.o) + used * width, (a.rows - used) * width, T(0));
  for (int64_t head = 0; head < a.heads; ++head) {
    std::fill_n(denominators + head * a.rows + used, a.rows - used, T(1));
  }
}

template <class T>
void backward(const LinearAttentionBackwardArgs& b) {
  const LinearAttentionArgs& a = b.forward;
  const T* denominators = static_cast<const T*>(a.denominator);
  for_each_head(a, [&](int64_t s, int64_t head) {
    Head<T> h(a, head);
    for (int64_t r = a.cu[s]; r < a.cu[s + 1]; ++r) {  // d_q needs what came before
      h.load(r);
      h.load_gradient(b, r, denominators[head * a.rows + r]);
      h.take_in(h.fk, h.v);
      T* d_q = h.gradient(b.d_qkv, r, 0);
      for (int64_t d = 0; d < h.D; ++d) {
        d_q[d] = slope(h.fq[d]) * dot(h.row_of(d), h.g.data(), h.D + 1);
      }
    }
    std::fill(h.state.begin(), h.state.end(), T(0));
    for (int64_t r = a.cu[s + 1]; r-- > a.cu[s];) {  // d_k and d_v what comes after
      h.load(r);
      h.load_gradient(b, r, denominators[head * a.rows + r]);
      h.take_in(h.fq, h.g);
      T* d_k = h.gradient(b.d_qkv, r, 1);
      T* d_v = h.gradient(b.d_qkv, r, 2);
      std::fill_n(d_v, h.D, T(0));
      for (int64_t d = 0; d < h.D; ++d) {
        d_k[d] = slope(h.fk[d]) * dot(h.row_of(d), h.v.data(), h.D + 1);
        add(d_v, h.fk[d], h.row_of(d), h.D);
      }
    }
  });
  const int64_t used = a.cu[a.sequences], width = 3 * a.heads * a.head_size;
  std::fill_n(static_cast<T*>(b.d_qkv) + used * width, (a.rows - used) * width, T(0));
}

template <class T>
void step(const LinearAttentionStepArgs& a) {
  const LinearAttentionArgs shapes{.qkv = a.qkv, .heads = a.heads, .head_size = a.head_size};
  parallel_for(a.rows * a.heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Head<T> h(shapes, i % a.heads);
      const int64_t r = i / a.heads;
      T* o = h.output(a.o, r);
      if (a.finished != nullptr && a.finished[r] != 0) {
        std::fill_n(o, h.D, T(0));
        continue;
      }
      T* kept = static_cast<T*>(a.state) + i * static_cast<int64_t>(h.state.size());
      if (a.positions[r] > 0) std::copy_n(kept, h.state.size(), h.state.begin());
      h.load(r);
      h.take_in(h.fk, h.v);
      std::copy(h.state.begin(), h.state.end(), kept);
      read_out(h, o);
    }
  });
}

}  // namespace

void linear_attention_forward_cpu(const Context&, const LinearAttentionArgs& args) {
  args.dtype == DType::f64 ? forward<double>(args) : forward<float>(args);
}
void linear_attention_backward_cpu(const Context&, const LinearAttentionBackwardArgs& args) {
  args.forward.dtype == DType::f64 ? backward<double>(args) : backward<float>(args);
}
void linear_attention_step_cpu(const Context&, const LinearAttentionStepArgs& args) {
  args.dtype == DType::f64 ? step<double>(args) : step<float>(args);
}

}  // namespace saturate::model
