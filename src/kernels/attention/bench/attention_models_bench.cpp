// SPDX-License-Identifier: Apache-2.0
// Attention as well-known models call it, with their features, by every implementation that fits on
// the first GPU: one JSON line each. A program of its own.
//
//   saturate_attention_models_bench [TEXT [IMPLEMENTATION]]
//       the cases whose names contain the text, by implementations whose names contain the other
//
// Medians of launches over two sets of inputs, uniform in [-1, 1); TFLOP/s count the pairs of query
// and key that see each other.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "kernels/attention/impl.h"
#include "runtime/device.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::kernels {
namespace {

struct ModelCase {
  const char* name;
  int64_t batch, heads, kv_heads, length, head_size, v_head_size = 0;
  int64_t window_left = kUnlimitedWindow;
  float soft_cap = 0.0f;
  bool causal = true, sinks = false, alibi = false, bias = false;
  bool fixed_slopes = false;  // ALiBi without a gradient of its slopes
};

constexpr ModelCase kCases[] = {
    {.name = "gemma2_local",
     .batch = 1,
     .heads = 8,
     .kv_heads = 4,
     .length = 8192,
     .head_size = 256,
     .window_left = 4095,
     .soft_cap = 50.0f},
    {.name = "gemma2_global",
     .batch = 1,
     .heads = 8,
     .kv_heads = 4,
     .length = 8192,
     .head_size = 256,
     .soft_cap = 50.0f},
    {.name = "gemma3_local",
     .batch = 1,
     .heads = 16,
     .kv_heads = 8,
     .length = 8192,
     .head_size = 256,
     .window_left = 1023},
    {.name = "mistral",
     .batch = 1,
     .heads = 32,
     .kv_heads = 8,
     .length = 8192,
     .head_size = 128,
     .window_left = 4095},
    {.name = "gpt_oss_local",
     .batch = 2,
     .heads = 64,
     .kv_heads = 8,
     .length = 4096,
     .head_size = 64,
     .window_left = 127,
     .sinks = true},
    {.name = "gpt_oss_global",
     .batch = 2,
     .heads = 64,
     .kv_heads = 8,
     .length = 4096,
     .head_size = 64,
     .sinks = true},
    {.name = "t5",
     .batch = 32,
     .heads = 12,
     .kv_heads = 12,
     .length = 512,
     .head_size = 64,
     .causal = false,
     .bias = true},
    {.name = "alibi",
     .batch = 4,
     .heads = 32,
     .kv_heads = 32,
     .length = 2048,
     .head_size = 128,
     .alibi = true},
    {.name = "deepseek_v3",
     .batch = 1,
     .heads = 32,
     .kv_heads = 32,
     .length = 4096,
     .head_size = 192,
     .v_head_size = 128},
    {.name = "phi2", .batch = 4, .heads = 32, .kv_heads = 32, .length = 2048, .head_size = 80},
    {.name = "phi3",
     .batch = 2,
     .heads = 32,
     .kv_heads = 32,
     .length = 4096,
     .head_size = 96,
     .window_left = 2046},
    {.name = "none_64", .batch = 4, .heads = 16, .kv_heads = 16, .length = 2048, .head_size = 64},
    {.name = "none_256", .batch = 2, .heads = 8, .kv_heads = 8, .length = 8192, .head_size = 256},
    {.name = "none_256_short",
     .batch = 16,
     .heads = 8,
     .kv_heads = 8,
     .length = 1024,
     .head_size = 256},
    {.name = "full_256",
     .batch = 2,
     .heads = 8,
     .kv_heads = 8,
     .length = 8192,
     .head_size = 256,
     .causal = false},
    {.name = "none_128", .batch = 4, .heads = 16, .kv_heads = 16, .length = 2048, .head_size = 128},
    {.name = "window_32_of_64",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 64,
     .window_left = 31},
    {.name = "window_128_of_64",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 64,
     .window_left = 127},
    {.name = "window_256_of_64",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 64,
     .window_left = 255},
    {.name = "window_512_of_64",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 64,
     .window_left = 511},
    {.name = "window_1024_of_64",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 64,
     .window_left = 1023},
    {.name = "window_32_of_128",
     .batch = 2,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 128,
     .window_left = 31},
    {.name = "window_128_of_128",
     .batch = 2,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 128,
     .window_left = 127},
    {.name = "window_256_of_128",
     .batch = 2,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 128,
     .window_left = 255},
    {.name = "window_512_of_128",
     .batch = 2,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 128,
     .window_left = 511},
    {.name = "window_1024_of_128",
     .batch = 2,
     .heads = 16,
     .kv_heads = 16,
     .length = 4096,
     .head_size = 128,
     .window_left = 1023},
    {.name = "window_128_of_64_short",
     .batch = 32,
     .heads = 12,
     .kv_heads = 12,
     .length = 512,
     .head_size = 64,
     .window_left = 127},
    {.name = "window_128_of_128_short",
     .batch = 32,
     .heads = 12,
     .kv_heads = 12,
     .length = 512,
     .head_size = 128,
     .window_left = 127},
    {.name = "window_128_of_256",
     .batch = 2,
     .heads = 8,
     .kv_heads = 8,
     .length = 4096,
     .head_size = 256,
     .window_left = 127},
    {.name = "window_512_of_256",
     .batch = 2,
     .heads = 8,
     .kv_heads = 8,
     .length = 4096,
     .head_size = 256,
     .window_left = 511},
    {.name = "window_128_of_256_short",
     .batch = 32,
     .heads = 6,
     .kv_heads = 6,
     .length = 512,
     .head_size = 256,
     .window_left = 127},
    {.name = "slopes_128",
     .batch = 4,
     .heads = 32,
     .kv_heads = 32,
     .length = 2048,
     .head_size = 128,
     .fixed_slopes = true},
    {.name = "slopes_64",
     .batch = 4,
     .heads = 32,
     .kv_heads = 32,
     .length = 2048,
     .head_size = 64,
     .fixed_slopes = true},
    {.name = "cap_64",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 2048,
     .head_size = 64,
     .soft_cap = 50.0f},
    {.name = "cap_128",
     .batch = 4,
     .heads = 16,
     .kv_heads = 16,
     .length = 2048,
     .head_size = 128,
     .soft_cap = 50.0f},
};

Buffer random(const Stream& stream, int64_t n, DType type, uint64_t key) {
  std::vector<unsigned char> host(static_cast<size_t>(n) * size_of(type));
  constexpr int64_t kPeriod = 1 << 18;  // then the same again
  const size_t period = static_cast<size_t>(std::min(n, kPeriod)) * size_of(type);
  for (int64_t i = 0; i < std::min(n, kPeriod); ++i) {
    const auto x =
        static_cast<float>(random_block(key, 0, 0, static_cast<uint64_t>(i)).x[0] * 0x1p-31 - 1);
    uint32_t bits = 0;
    std::memcpy(&bits, &x, 4);
    if (type == DType::bf16) bits >>= 16;
    std::memcpy(host.data() + static_cast<size_t>(i) * size_of(type), &bits, size_of(type));
  }
  for (size_t at = period; at < host.size(); at += period)
    std::memcpy(host.data() + at, host.data(), std::min(period, host.size() - at));
  Buffer b(stream.device(), host.size());
  copy_to_device(stream, b.data(), host.data(), host.size());
  stream.synchronize();
  return b;
}

struct Set {
  Buffer q, k, v, o, d_o, lse, delta, d_q, d_k, d_v, workspace;
};

class Bench {
 public:
  Bench(const ModelCase& c, const Stream& stream)
      : c_(c), stream_(stream), ctx_{stream.device(), stream.native(), nullptr, 0} {
    const Device device = stream.device();
    const int64_t rows = c.batch * c.length, D = c.head_size, V = c.v_head_size ? c.v_head_size : D;
    const auto room = [&](int64_t n, size_t size) {
      return Buffer(device, static_cast<size_t>(n) * size);
    };
    std::vector<int32_t> cu;
    for (int64_t s = 0; s <= c.batch; ++s) cu.push_back(static_cast<int32_t>(s * c.length));
    offsets_ = Buffer(device, cu.size() * 4);
    copy_to_device(stream, offsets_.data(), cu.data(), cu.size() * 4);
    per_head_ = random(stream, c.heads, DType::f32, 7);
    d_per_head_ = room(c.heads, 4);
    if (c.bias) {
      bias_ = random(stream, c.heads * c.length * c.length, DType::bf16, 8);
      d_bias_ = room(c.heads * c.length * c.length, 4);
    }
    for (uint64_t s = 0; s < 2; ++s) {
      sets_.push_back(
          {random(stream, rows * c.heads * D, DType::bf16, 1 + 10 * s),
           random(stream, rows * c.kv_heads * D, DType::bf16, 2 + 10 * s),
           random(stream, rows * c.kv_heads * V, DType::bf16, 3 + 10 * s),
           room(rows * c.heads * V, 2), random(stream, rows * c.heads * V, DType::bf16, 4 + 10 * s),
           room(rows * c.heads, 4), room(rows * c.heads, 4), room(rows * c.heads * D, 2),
           room(rows * c.kv_heads * D, 2), room(rows * c.kv_heads * V, 2), Buffer()});
      Set& set = sets_.back();
      AttentionBackwardArgs any = args_of(set);
      any.workspace_bytes = kAnyWorkspace;
      const int64_t bytes = plan_attention(ctx_, any).workspace_bytes;
      set.workspace = Buffer(device, static_cast<size_t>(bytes));
    }
    stream.synchronize();
  }

  void report(std::string_view wanted) {
    for (const Set& s : sets_) attention_forward(ctx_, args_of(s).forward);  // lse and o
    const double gflop = 4e-9 * pairs() * static_cast<double>(c_.batch * c_.heads);
    const auto D = static_cast<double>(c_.head_size);
    const double V = c_.v_head_size ? static_cast<double>(c_.v_head_size) : D;
    for (const auto& impl : attention_forward_impls())
      if (chosen(impl, wanted) && impl.fits(ctx_, args_of(sets_[0]).forward))
        print(impl.name, gflop * (D + V) / 2,
              [&](const AttentionBackwardArgs& b) { impl.launch(ctx_, b.forward); });
    for (const auto& impl : attention_backward_impls())
      if (chosen(impl, wanted) && impl.fits(ctx_, args_of(sets_[0])))
        print(impl.name, gflop * (3 * D + 2 * V) / 2,
              [&](const AttentionBackwardArgs& b) { impl.launch(ctx_, b); });
  }

 private:
  template <class Implementation>
  static bool chosen(const Implementation& impl, std::string_view wanted) {
    return impl.device == DeviceKind::cuda &&
           std::string_view(impl.name).find(wanted) != std::string_view::npos;
  }
  // Of query and key that see each other, in one head of one sequence.
  double pairs() const {
    double sum = 0;
    for (int64_t i = 0; i < c_.length; ++i) {
      const int64_t low = c_.window_left > i ? 0 : i - c_.window_left;
      sum += static_cast<double>((c_.causal ? i + 1 : c_.length) - low);
    }
    return sum;
  }
  AttentionBackwardArgs args_of(const Set& s) const {
    const ModelCase& c = c_;
    const int64_t D = c.head_size, V = c.v_head_size ? c.v_head_size : D;
    AttentionBackwardArgs b;
    AttentionArgs& a = b.forward;
    a.q = s.q.data(), a.k = s.k.data(), a.v = s.v.data(), a.o = s.o.data(), a.lse = s.lse.data();
    a.cu_q = a.cu_k = offsets_.as<int32_t>();
    a.sequences = c.batch, a.heads = c.heads, a.kv_heads = c.kv_heads, a.head_size = D;
    a.q_rows = a.k_rows = c.batch * c.length, a.max_q = a.max_k = c.length;
    a.q_stride = c.heads * D, a.k_stride = c.kv_heads * D, a.v_stride = c.kv_heads * V;
    a.o_stride = c.heads * V, a.v_head_size = c.v_head_size;
    a.dtype = DType::bf16, a.causal = c.causal;
    a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(D)));
    a.window_left = c.window_left, a.soft_cap = c.soft_cap;
    if (c.sinks) a.sinks = per_head_.data(), b.d_sinks = d_per_head_.data();
    if (c.alibi || c.fixed_slopes) a.alibi_slopes = per_head_.data();
    if (c.alibi) b.d_alibi_slopes = d_per_head_.data();
    if (c.bias) {
      a.bias = bias_.data(), a.bias_dtype = DType::bf16, b.d_bias = d_bias_.data();
      a.bias_row_stride = b.d_bias_row_stride = c.length;
      a.bias_head_stride = b.d_bias_head_stride = c.length * c.length;
    }
    b.d_o = s.d_o.data(), b.delta = s.delta.data();
    b.d_q = s.d_q.data(), b.d_k = s.d_k.data(), b.d_v = s.d_v.data();
    b.d_q_stride = a.q_stride, b.d_k_stride = a.k_stride, b.d_v_stride = a.v_stride;
    b.workspace = s.workspace.data();
    b.workspace_bytes = static_cast<int64_t>(s.workspace.bytes());
    return b;
  }
  template <class Call>
  double time_of(int calls, const Call& call) const {
    Event begin(stream_.device(), Event::Timing::on), end(stream_.device(), Event::Timing::on);
    begin.record(stream_);
    for (int n = 0; n < calls; ++n) call(args_of(sets_[static_cast<size_t>(n % 2)]));
    end.record(stream_);
    end.synchronize();
    return Event::elapsed_ms(begin, end) / calls;
  }
  template <class Call>
  void print(const char* implementation, double gflop, const Call& call) const {
    time_of(1, call);
    const double once = time_of(1, call);
    const int calls = once > 10 ? 1 : 6;
    std::vector<double> ms;
    for (int run = 0; run < (once > 10 ? 3 : 11); ++run) ms.push_back(time_of(calls, call));
    std::sort(ms.begin(), ms.end());
    const double median = ms[ms.size() / 2];
    std::printf(R"({"what":"attention_model","case":"%s","implementation":"%s","type":"bf16",)"
                R"("ms":%.4f,"tflops":%.1f})"
                "\n",
                c_.name, implementation, median, gflop / median);
    std::fflush(stdout);
  }

  const ModelCase& c_;
  const Stream& stream_;
  Context ctx_;
  Buffer offsets_, per_head_, d_per_head_, bias_, d_bias_;
  std::vector<Set> sets_;
};

}  // namespace
}  // namespace saturate::kernels

int main(int count, char** arguments) {
  using namespace saturate;
  if (cuda_device_count() == 0) return std::puts("no GPU"), 0;
  const Device device{DeviceKind::cuda, 0};
  use_device(device);
  const Stream stream(device);
  const std::string_view text = count > 1 ? arguments[1] : "",
                         wanted = count > 2 ? arguments[2] : "";
  for (const kernels::ModelCase& c : kernels::kCases)
    if (std::string_view(c.name).find(text) != std::string_view::npos)
      kernels::Bench(c, stream).report(wanted);
}
