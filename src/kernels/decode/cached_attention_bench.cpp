// SPDX-License-Identifier: Apache-2.0
// Attention of generation steps: chains in a CUDA graph, every call with a cache of its own, so that
// histories come from memory. One JSON line for a case and an implementation: microseconds a call, the
// median of 15 graphs, and the distinct bytes of keys and values over that time.
// usage: saturate_cached_attention_bench
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/testing/bench.h"

using namespace saturate;
using namespace saturate::kernels;

namespace {

constexpr int kChain = 16;
constexpr size_t kCold = size_t{200} << 20;  // bytes of histories: four times L2

struct Case {
  const char* name;
  int64_t rows, heads, kv_heads, head_size;
  int64_t positions, bound;  // of each row, and what the graph was made for
  bool memory = false;       // of a source
  bool beams = false;        // each row's slots by a table, groups of four share three in four
};

template <class T>
Buffer to_gpu(const Stream& s, const std::vector<T>& v) {
  Buffer b(s.device(), v.size() * sizeof(T));
  copy_to_device(s, b.data(), v.data(), b.bytes());
  s.synchronize();
  return b;
}

void measure(const Case& c) {
  const Stream stream(Device{DeviceKind::cuda, 0});
  const Buffer workspace(stream.device(), kWorkspaceBytes);
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  const int64_t q_width = c.heads * c.head_size, kv = c.kv_heads * c.head_size;
  const int64_t slots = c.rows * c.bound, slot_bytes = 4 * kv;
  const auto cache_bytes = static_cast<size_t>(slots * slot_bytes);
  const auto sets = static_cast<int>(
      std::clamp((kCold + cache_bytes - 1) / cache_bytes, size_t{1}, size_t{kChain}));
  const Buffer qkv = testing::random_bf16(stream, c.rows * (q_width + 2 * kv)),
               cache = testing::random_bf16(stream, sets * slots * 2 * kv);
  const Buffer o(stream.device(), static_cast<size_t>(c.rows * q_width) * 2);
  std::vector<int32_t> starts,
      last(static_cast<size_t>(c.rows), static_cast<int32_t>(c.positions - 1)), table;
  for (int64_t r = 0; r < c.rows; ++r) {
    starts.push_back(static_cast<int32_t>((c.memory ? r / 4 : r) * c.bound));
    for (int64_t j = 0; c.beams && j < c.bound; ++j)
      table.push_back(static_cast<int32_t>((j < c.bound * 3 / 4 ? r / 4 * 4 : r) * c.bound + j));
  }
  if (c.memory)
    for (int32_t& n : last) ++n;
  const Buffer from = to_gpu(stream, starts), at = to_gpu(stream, last),
               slot_table = to_gpu(stream, table.empty() ? starts : table);
  const auto args = [&](int i) {
    CachedAttentionArgs a{.qkv = qkv.data(),
                          .cache = cache.as<char>() + static_cast<size_t>(i % sets) * cache_bytes,
                          .o = o.data(),
                          .starts = from.as<int32_t>(),
                          .slots = c.beams ? slot_table.as<int32_t>() : nullptr,
                          .rows = c.rows,
                          .heads = c.heads,
                          .kv_heads = c.kv_heads,
                          .head_size = c.head_size,
                          .max_positions = c.bound,
                          .dtype = DType::bf16,
                          .scale = 0.125f};
    (c.memory ? a.lengths : a.positions) = at.as<int32_t>();
    return a;
  };
  const double distinct =
      static_cast<double>(c.rows * c.positions * slot_bytes) / (c.memory  ? 4
                                                                : c.beams ? 16.0 / 7
                                                                          : 1);
  const auto say = [&](const char* name, double us) {
    fmt::print(
        "{{\"case\":\"{}\",\"rows\":{},\"heads\":{},\"kv_heads\":{},\"head_size\":{},\"positions\":"
        "{},\"bound\":{},"
        "\"kernel\":\"{}\",\"us\":{:.2f},\"gb_s\":{:.0f}}}\n",
        c.name, c.rows, c.heads, c.kv_heads, c.head_size, c.positions, c.bound, name, us,
        distinct / us / 1e3);
    std::fflush(stdout);
  };
  say("cached_attention_cuda", testing::graph_microseconds(ctx, kChain, [&](int i) {
        cached_attention_cuda(ctx, args(i));
      }));
  say("cached_attention_mma_cuda", testing::graph_microseconds(ctx, kChain, [&](int i) {
        cached_attention_mma_cuda(ctx, args(i));
      }));
}

}  // namespace

int main() {
  constexpr Case kCases[] = {{"gpt2", 1, 12, 12, 64, 576, 640},
                             {"gpt2", 8, 12, 12, 64, 576, 640},
                             {"gpt2", 64, 12, 12, 64, 576, 640},
                             {"llama 1b", 1, 32, 8, 64, 576, 640},
                             {"llama 1b", 8, 32, 8, 64, 576, 640},
                             {"llama 1b", 64, 32, 8, 64, 576, 640},
                             {"llama 8b", 1, 32, 8, 128, 8000, 8192},
                             {"llama 8b", 8, 32, 8, 128, 8000, 8192},
                             {"llama 8b", 64, 32, 8, 128, 2000, 2048},
                             {"16 queries a key", 64, 32, 2, 128, 2000, 2048},
                             {"base, one line", 4, 8, 8, 64, 20, 256, false, true},
                             {"base, one line's source", 4, 8, 8, 64, 20, 24, true},
                             {"base, 512 lines", 2048, 8, 8, 64, 16, 64, false, true},
                             {"base, 512 sources", 2048, 8, 8, 64, 16, 64, true},
                             {"base, 512 long lines", 2048, 8, 8, 64, 60, 128, false, true},
                             {"big, 128 lines", 512, 16, 16, 64, 30, 128, false, true}};
  for (const Case& c : kCases) measure(c);
  return 0;
}
