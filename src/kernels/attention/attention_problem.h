// SPDX-License-Identifier: Apache-2.0
// For the tests: one attention problem with random inputs, its double-precision truth, error bounds
// derived from the number formats, and a runner for any implementation.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/attention/attention_impl.h"
#include "kernels/attention/attention_reference.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels {

using Values = std::vector<double>;

// Nearest value of a format with `bits` of significand (no overflow handling: inputs are small).
inline double rounded(double x, int bits, int lowest_exponent) {
  int e = 0;
  (void)std::frexp(x, &e);
  const double unit = std::ldexp(1.0, std::max(e - bits, lowest_exponent));
  return std::nearbyint(x / unit) * unit;
}
inline double rounded(double x, DType t) {
  if (x == 0 || !std::isfinite(x)) return x;
  if (t == DType::f32) return static_cast<float>(x);
  if (t == DType::bf16) return rounded(x, 8, -133);
  if (t == DType::f16) return rounded(x, 11, -24);
  return x;
}

inline void encode(double x, DType t, void* to) {
  const auto single = static_cast<float>(x);
  uint32_t bits = 0;
  std::memcpy(&bits, &single, 4);
  if (t == DType::f64) return void(std::memcpy(to, &x, 8));
  if (t == DType::f32) return void(std::memcpy(to, &bits, 4));
  auto half = static_cast<uint16_t>(bits >> 16);
  if (t == DType::f16) {  // x is a value of f16
    const uint32_t magnitude = bits & 0x7FFFFFFFu;
    if (std::isnan(x)) {
      half = 0x7E00;
    } else if (std::fabs(x) < 0x1p-14) {
      half = static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                                   static_cast<uint32_t>(std::fabs(x) * 0x1p24));
    } else {
      half = static_cast<uint16_t>((bits >> 16 & 0x8000u) | ((magnitude - (112u << 23)) >> 13));
    }
  }
  std::memcpy(to, &half, 2);
}

inline double decode(const void* from, DType t) {
  if (t == DType::f64) {
    double x = 0;
    std::memcpy(&x, from, 8);
    return x;
  }
  uint32_t bits = 0;
  if (t == DType::f32) {
    std::memcpy(&bits, from, 4);
  } else {
    uint16_t half = 0;
    std::memcpy(&half, from, 2);
    const uint32_t exponent = half >> 10 & 31u, fraction = half & 1023u;
    if (t == DType::f16) {
      const double sign = half & 0x8000u ? -1 : 1;
      if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
      return exponent ? sign * std::ldexp(1024.0 + fraction, static_cast<int>(exponent) - 25)
                      : sign * std::ldexp(static_cast<double>(fraction), -24);
    }
    bits = static_cast<uint32_t>(half) << 16;
  }
  float x = 0;
  std::memcpy(&x, &bits, 4);
  return static_cast<double>(x);
}

struct Shape {
  const char* name;
  std::vector<int32_t> q_lengths, k_lengths;
  int64_t heads, kv_heads, head_size;
  bool causal = false;
  float dropout = 0.0f;
  bool packed = false;             // q, k and v interleaved in one projection
  int64_t q_tail = 0, k_tail = 0;  // rows after the last sequence
};

constexpr int64_t kGuard = 64;  // elements after every buffer that nobody may touch

// Where each array lies: elements of one buffer for inputs (and one for gradients), another for o.
struct Problem {
  Shape shape;
  DType dtype;
  std::vector<int32_t> cu_q{0}, cu_k{0};
  AttentionBackwardArgs args;  // everything but the pointers
  int64_t k_at = 0, v_at = 0, input_size = 0, o_size = 0, lse_size = 0;
  Values input, d_o;
  uint64_t rng_state[2] = {0x1234567890ABCDEFull, 41};

  Problem(const Shape& s, DType t) : shape(s), dtype(t) {
    for (int32_t n : s.q_lengths) cu_q.push_back(cu_q.back() + n);
    for (int32_t n : s.k_lengths) cu_k.push_back(cu_k.back() + n);
    AttentionArgs& a = args.forward;
    const int64_t D = s.head_size, q_width = s.heads * D, k_width = s.kv_heads * D;
    a.sequences = static_cast<int64_t>(s.q_lengths.size());
    a.heads = s.heads, a.kv_heads = s.kv_heads, a.head_size = D;
    a.q_rows = cu_q.back() + s.q_tail, a.k_rows = cu_k.back() + s.k_tail;
    for (int32_t n : s.q_lengths) a.max_q = std::max<int64_t>(a.max_q, n);
    for (int32_t n : s.k_lengths) a.max_k = std::max<int64_t>(a.max_k, n);
    a.q_stride = a.k_stride = a.v_stride = q_width + 2 * k_width;
    k_at = q_width, v_at = q_width + k_width, input_size = a.q_rows * a.q_stride;
    if (!s.packed) {
      a.q_stride = q_width + 8, a.k_stride = k_width, a.v_stride = k_width + 16;
      k_at = a.q_rows * a.q_stride, v_at = k_at + a.k_rows * a.k_stride;
      input_size = v_at + a.k_rows * a.v_stride;
    }
    a.o_stride = q_width + 8;
    o_size = a.q_rows * a.o_stride;
    lse_size = s.heads * a.q_rows;
    a.dtype = t, a.causal = s.causal, a.dropout = s.dropout;
    a.scale = static_cast<float>(1.5 / std::sqrt(static_cast<double>(D)));
    a.rng.op = 7;
    args.d_q_stride = a.q_stride, args.d_k_stride = a.k_stride, args.d_v_stride = a.v_stride;
    input = random(input_size, 1);
    d_o = random(o_size, 2);
  }

  Values random(int64_t n, uint64_t stream) const {
    Values v(static_cast<size_t>(n));
    for (size_t i = 0; i < v.size(); ++i)
      v[i] = rounded(random_block(99, stream, 0, i).x[0] * 0x1p-31 - 1, dtype);
    return v;
  }

  // The arguments with every pointer set; elements of `bytes` bytes (8 for the reference).
  AttentionBackwardArgs at(size_t bytes, char* in, char* o, char* lse, char* d_o_data, char* d_in,
                           char* delta) const {
    AttentionBackwardArgs b = args;
    AttentionArgs& a = b.forward;
    a.q = in, a.k = in + k_at * bytes, a.v = in + v_at * bytes;
    a.o = o, a.lse = lse, b.d_o = d_o_data, b.delta = delta;
    b.d_q = d_in, b.d_k = d_in + k_at * bytes, b.d_v = d_in + v_at * bytes;
    return b;
  }
};

struct Result {
  Values o, lse, d_input;  // with guards; NaN where nothing was written
};

inline Result truth(const Problem& p) {
  Values in = p.input, d_o = p.d_o;
  const double nan = std::nan("");
  Result r{Values(p.o_size + kGuard, nan), Values(p.lse_size + kGuard, nan),
           Values(p.input_size + kGuard, nan)};
  const auto bytes = [](Values& v) { return reinterpret_cast<char*>(v.data()); };
  AttentionBackwardArgs b =
      p.at(8, bytes(in), bytes(r.o), bytes(r.lse), bytes(d_o), bytes(r.d_input), bytes(in));
  b.forward.dtype = DType::f64;
  b.forward.cu_q = p.cu_q.data(), b.forward.cu_k = p.cu_k.data(), b.forward.rng.state = p.rng_state;
  attention_forward_reference(b.forward);
  attention_backward_reference(b);
  return r;
}

// Runs one implementation of each direction; null functions mean attention_forward/backward.
inline Result run(const Problem& p, Device device, const Impl<AttentionArgs>* forward,
                  const Impl<AttentionBackwardArgs>* backward) {
  const Stream stream(device);
  const DType wide_type = wide_of(p.dtype);
  const size_t size = size_of(p.dtype);
  const auto upload = [&](const Values& v, DType t, int64_t n) {
    std::vector<char> host(static_cast<size_t>(n + kGuard) * size_of(t));
    for (int64_t i = 0; i < n + kGuard; ++i)
      encode(i < static_cast<int64_t>(v.size()) ? v[i] : std::nan(""), t,
             host.data() + i * size_of(t));
    Buffer b(device, host.size());
    copy_to_device(stream, b.data(), host.data(), host.size());
    stream.synchronize();
    return b;
  };
  const auto download = [&](const Buffer& b, DType t, int64_t n) {
    std::vector<char> host(static_cast<size_t>(n + kGuard) * size_of(t));
    copy_to_host(stream, host.data(), b.data(), host.size());
    stream.synchronize();
    Values v(static_cast<size_t>(n + kGuard));
    for (size_t i = 0; i < v.size(); ++i) v[i] = decode(host.data() + i * size_of(t), t);
    return v;
  };
  const auto raw = [&](const void* data, size_t bytes) {
    Buffer b(device, bytes);
    copy_to_device(stream, b.data(), data, bytes);
    return b;
  };
  const Buffer in = upload(p.input, p.dtype, p.input_size), d_o = upload(p.d_o, p.dtype, p.o_size);
  const Buffer o = upload({}, p.dtype, p.o_size), d_in = upload({}, p.dtype, p.input_size);
  const Buffer lse = upload({}, wide_type, p.lse_size), delta = upload({}, wide_type, p.lse_size);
  const Buffer cu_q = raw(p.cu_q.data(), p.cu_q.size() * 4),
               cu_k = raw(p.cu_k.data(), p.cu_k.size() * 4);
  const Buffer rng = raw(p.rng_state, sizeof p.rng_state);
  AttentionBackwardArgs b = p.at(size, in.as<char>(), o.as<char>(), lse.as<char>(), d_o.as<char>(),
                                 d_in.as<char>(), delta.as<char>());
  b.forward.cu_q = cu_q.as<int32_t>(), b.forward.cu_k = cu_k.as<int32_t>();
  b.forward.rng.state = rng.as<uint64_t>();
  const Context ctx{device, stream.native(), nullptr, 0};
  forward ? forward->launch(ctx, b.forward) : attention_forward(ctx, b.forward);
  backward ? backward->launch(ctx, b) : attention_backward(ctx, b);
  stream.synchronize();
  return {download(o, p.dtype, p.o_size), download(lse, wide_type, p.lse_size),
          download(d_in, p.dtype, p.input_size)};
}

}  // namespace saturate::kernels
