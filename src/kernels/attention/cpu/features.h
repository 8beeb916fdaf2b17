// SPDX-License-Identifier: Apache-2.0
// The features of attention.h for one (sequence, head) on the CPU: which keys a query sees, what is
// done to a row of scores and to its gradient, and rotary positions.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/attention/attention.h"

namespace saturate::kernels {

// Keys [begin, end).
struct KeyRange {
  int64_t begin, end;
};

template <class T>
class HeadFeatures {
 public:
  HeadFeatures(const AttentionArgs& args, int64_t sequence, int64_t head)
      : a_(args),
        keys_(args.cu_k[sequence + 1] - args.cu_k[sequence]),
        left_(std::min(args.window_left, kFar)),
        right_(args.causal ? 0 : std::min(args.window_right, kFar)) {
    const int64_t queries = args.cu_q[sequence + 1] - args.cu_q[sequence];
    if (args.alignment == CausalAlignment::bottom_right) shift_ = keys_ - queries;
    if (args.alibi_slopes) slope_ = static_cast<const T*>(args.alibi_slopes)[head];
    if (args.sinks) sink_ = static_cast<const T*>(args.sinks)[head];
    bias_at_ = sequence * args.bias_sequence_stride + head * args.bias_head_stride;
    if (args.block_mask)
      mask_ = args.block_mask + sequence * args.block_mask_sequence_stride +
              head * args.block_mask_head_stride;
  }

  T sink() const { return sink_; }
  int64_t aligned(int64_t i) const { return i + shift_; }

  // What causal order and the window leave of the keys.
  KeyRange range(int64_t i) const {
    const int64_t end = std::clamp<int64_t>(aligned(i) + right_ + 1, 0, keys_);
    return {std::clamp<int64_t>(aligned(i) - left_, 0, end), end};
  }

  // x[begin..end): products q.k of row i become scores; hidden keys minus infinity. cap_slope (or
  // null) gets the derivative of the cap at each.
  void score(int64_t i, KeyRange keys, T* x, T* cap_slope) const {
    const T scale = static_cast<T>(a_.scale), cap = static_cast<T>(a_.soft_cap);
    for (int64_t j = keys.begin; j < keys.end; ++j) x[j] *= scale;
    if (cap > 0) {
      for (int64_t j = keys.begin; j < keys.end; ++j) {
        const T t = std::tanh(x[j] / cap);
        x[j] = cap * t;
        if (cap_slope) cap_slope[j] = T(1) - t * t;
      }
    }
    if (a_.bias) {
      const int64_t at = bias_at_ + i * a_.bias_row_stride;
      a_.bias_dtype == DType::f64 ? add<double>(at, keys, x) : add<float>(at, keys, x);
    }
    if (slope_ != 0)
      for (int64_t j = keys.begin; j < keys.end; ++j) x[j] -= slope_ * distance(i, j);
    if (mask_) hide_blocks(i / a_.block_size, keys, x);
  }

  // d[begin..end): gradients of the scores become those of scale-free products; adds to d_bias's
  // row and to the slope's gradient on the way.
  void unscore(int64_t i, KeyRange keys, const T* cap_slope, T* d, T* d_bias, T* d_slope) const {
    if (d_bias)
      for (int64_t j = keys.begin; j < keys.end; ++j) d_bias[j] += d[j];
    if (d_slope)
      for (int64_t j = keys.begin; j < keys.end; ++j) *d_slope -= d[j] * distance(i, j);
    if (a_.soft_cap > 0.0f)
      for (int64_t j = keys.begin; j < keys.end; ++j) d[j] *= cap_slope[j];
    const T scale = static_cast<T>(a_.scale);
    for (int64_t j = keys.begin; j < keys.end; ++j) d[j] *= scale;
  }

 private:
  static constexpr int64_t kFar = int64_t{1}
                                  << 40;  // beyond any sequence, and sums cannot overflow

  T distance(int64_t i, int64_t j) const {
    return static_cast<T>(j < aligned(i) ? aligned(i) - j : j - aligned(i));
  }
  template <class B>
  void add(int64_t at, KeyRange keys, T* x) const {
    const B* bias = static_cast<const B*>(a_.bias) + at;
    for (int64_t j = keys.begin; j < keys.end; ++j) x[j] += static_cast<T>(bias[j]);
  }
  void hide_blocks(int64_t block_row, KeyRange keys, T* x) const {
    const uint32_t* words = mask_ + block_row * attention_block_mask_words(a_);
    for (int64_t n = keys.begin / a_.block_size; n * a_.block_size < keys.end; ++n) {
      if (words[n / 32] >> (n % 32) & 1u) continue;
      const int64_t end = std::min(keys.end, (n + 1) * a_.block_size);
      for (int64_t j = std::max(keys.begin, n * a_.block_size); j < end; ++j)
        x[j] = -std::numeric_limits<T>::infinity();
    }
  }

  const AttentionArgs& a_;
  int64_t keys_, left_, right_, shift_ = 0, bias_at_ = 0;
  T slope_ = 0, sink_ = -std::numeric_limits<T>::infinity();
  const uint32_t* mask_ = nullptr;
};

// Rotates (sign 1) or rotates back (sign -1) `rows` heads of size D: element d of row r lies at
// x[r * row_step + d * element_step], and its position is first + r. Angles are taken in double.
template <class T>
void rotate_heads(T* x, int64_t rows, int64_t row_step, int64_t element_step, int64_t D, float base,
                  int64_t first, double sign) {
  const int64_t half = D / 2;
  for (int64_t d = 0; d < half; ++d) {
    const double frequency =
        sign *
        std::pow(static_cast<double>(base), -2.0 * static_cast<double>(d) / static_cast<double>(D));
    for (int64_t r = 0; r < rows; ++r) {
      T& low = x[r * row_step + d * element_step];
      T& high = x[r * row_step + (d + half) * element_step];
      const double angle = frequency * static_cast<double>(first + r);
      const T c = static_cast<T>(std::cos(angle)), s = static_cast<T>(std::sin(angle));
      const T rotated = low * c - high * s;
      high = high * c + low * s;
      low = rotated;
    }
  }
}

}  // namespace saturate::kernels
