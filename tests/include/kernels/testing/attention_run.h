// SPDX-License-Identifier: Apache-2.0
// For the tests: runs a problem by the reference or by any implementation.
#pragma once
#include <vector>

#include "kernels/attention/hopper/backward.h"
#include "kernels/attention/reference.h"
#include "kernels/testing/attention_problem.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels {

// With guards; NaN where nothing was written.
struct Result {
  Values o, lse, d_input, d_bias, d_per_head;
};

// Calls use(args) with all arrays in host memory as doubles; results lie in r.
template <class Use>
void with_reference_args(const Problem& p, Result& r, const Use& use) {
  Values in = p.input, d_o = p.d_o, bias = p.bias, per_head = p.per_head;
  const auto bytes = [](Values& v) { return reinterpret_cast<char*>(v.data()); };
  AttentionBackwardArgs b =
      p.at(8, 8,
           {bytes(in), bytes(r.o), bytes(r.lse), bytes(d_o), bytes(r.d_input), bytes(in),
            bytes(bias), bytes(per_head), bytes(r.d_bias), bytes(r.d_per_head), p.block_mask.data(),
            p.cu_q.data(), p.cu_k.data(), p.rng_state});
  b.forward.dtype = b.forward.bias_dtype = DType::f64;
  use(b);
}

inline Result truth(const Problem& p) {
  const double nan = std::nan("");
  Result r{Values(p.o_size + kGuard, nan), Values(p.lse_size + kGuard, nan),
           Values(p.input_size + kGuard, nan), Values(p.bias_size + kGuard, nan),
           Values(p.per_head.size() + kGuard, nan)};
  with_reference_args(p, r, [](const AttentionBackwardArgs& b) {
    attention_forward_reference(b.forward);
    attention_backward_reference(b);
  });
  return r;
}

// Arrays in the memory of a device, encoded in their types.
class DeviceArrays {
 public:
  explicit DeviceArrays(Device device) : stream(device) {}

  // n elements and guards; NaN beyond the values.
  Buffer upload(const Values& v, DType t, int64_t n) const {
    std::vector<char> host(static_cast<size_t>(n + kGuard) * size_of(t));
    for (int64_t i = 0; i < n + kGuard; ++i)
      encode(i < static_cast<int64_t>(v.size()) ? v[i] : std::nan(""), t,
             host.data() + i * size_of(t));
    return raw(host.data(), host.size());
  }
  Values download(const Buffer& b, DType t, int64_t n) const {
    std::vector<char> host(static_cast<size_t>(n + kGuard) * size_of(t));
    copy_to_host(stream, host.data(), b.data(), host.size());
    stream.synchronize();
    Values v(static_cast<size_t>(n + kGuard));
    for (size_t i = 0; i < v.size(); ++i) v[i] = decode(host.data() + i * size_of(t), t);
    return v;
  }
  Buffer raw(const void* data, size_t bytes) const {
    Buffer b(stream.device(), bytes);
    copy_to_device(stream, b.data(), data, bytes);
    stream.synchronize();
    return b;
  }

  const Stream stream;
};

// Runs one implementation of each direction; null means the one that is planned after `measured`.
inline Result run(const Problem& p, Device device, const Impl<AttentionArgs>* forward,
                  const Impl<AttentionBackwardArgs>* backward,
                  const AttentionTable* measured = nullptr) {
  const DeviceArrays m(device);
  const DType wide = wide_of(p.dtype);
  const auto heads = static_cast<int64_t>(p.per_head.size());
  const Buffer in = m.upload(p.input, p.dtype, p.input_size);
  const Buffer d_o = m.upload(p.d_o, p.dtype, p.o_size);
  const Buffer o = m.upload({}, p.dtype, p.o_size);
  const Buffer d_in = m.upload({}, p.dtype, p.input_size);
  const Buffer lse = m.upload({}, wide, p.lse_size), delta = m.upload({}, wide, p.lse_size);
  const Buffer bias = m.upload(p.bias, p.args.forward.bias_dtype, p.bias_size);
  const Buffer d_bias = m.upload({}, wide, p.bias_size);
  const Buffer per_head = m.upload(p.per_head, wide, heads);
  const Buffer d_per_head = m.upload({}, wide, heads);
  const Buffer mask = m.raw(p.block_mask.data(), p.block_mask.size() * 4);
  const Buffer cu_q = m.raw(p.cu_q.data(), p.cu_q.size() * 4);
  const Buffer cu_k = m.raw(p.cu_k.data(), p.cu_k.size() * 4);
  const Buffer rng = m.raw(p.rng_state, sizeof p.rng_state);
  const auto at = [](const Buffer& b) { return b.as<char>(); };
  AttentionBackwardArgs b = p.at(size_of(p.dtype), size_of(wide),
                                 {at(in), at(o), at(lse), at(d_o), at(d_in), at(delta), at(bias),
                                  at(per_head), at(d_bias), at(d_per_head), mask.as<uint32_t>(),
                                  cu_q.as<int32_t>(), cu_k.as<int32_t>(), rng.as<uint64_t>()});
  const Buffer workspace(device,
                         static_cast<size_t>(attention_backward_hopper_workspace(b.forward)));
  b.workspace = workspace.data(), b.workspace_bytes = static_cast<int64_t>(workspace.bytes());
  const Context ctx{device, m.stream.native(), nullptr, 0};
  AttentionBackwardArgs resolved = b;  // for an implementation that is launched by itself
  resolved.forward = attention_resolved(b.forward);
  forward ? forward->launch(ctx, resolved.forward)
          : attention_forward(ctx, plan_attention(ctx, b.forward, measured), b.forward);
  backward ? backward->launch(ctx, resolved)
           : attention_backward(ctx, plan_attention(ctx, b, measured), b);
  m.stream.synchronize();
  return {m.download(o, p.dtype, p.o_size), m.download(lse, wide, p.lse_size),
          m.download(d_in, p.dtype, p.input_size), m.download(d_bias, wide, p.bias_size),
          m.download(d_per_head, wide, heads)};
}

}  // namespace saturate::kernels
