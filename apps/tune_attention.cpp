// SPDX-License-Identifier: Apache-2.0
// `saturate tune attention`: the fastest kernel of each direction for shapes of attention.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "apps/commands.h"
#include "base/cache_folder.h"
#include "base/error.h"
#include "base/log.h"
#include "kernels/attention/tune/tune.h"
#include "runtime/context.h"
#include "runtime/memory.h"

namespace saturate::apps {
namespace {

using kernels::AttentionKey;
using kernels::AttentionPass;

struct Shape {
  std::string text;
  bool causal;
};

// Those of the benchmarks: translation, GPT-2, and long sequences of wide heads.
std::vector<Shape> default_shapes() {
  return {{"784x8x32x64", false},    {"784x8x32x64", true},    {"256x8x64x64", false},
          {"256x8x64x64", true},     {"192x8x96x64", false},   {"128x8x128x64", false},
          {"64x8x256x64", true},     {"32x12x512x64", true},   {"32x12x1024x64", true},
          {"16x16x1024x128", false}, {"16x16x1024x128", true}, {"8x16x2048x128", true},
          {"4x16x4096x128", true},   {"32x32x384x128", true}};
}

AttentionKey parse_key(const Shape& shape, const TuneOptions& o, DType type) {
  int used = 0;
  long long s = 0, h = 0, length = 0, d = 0;
  if (std::sscanf(shape.text.c_str(), "%lldx%lldx%lldx%lld%n", &s, &h, &length, &d, &used) != 4 ||
      static_cast<size_t>(used) != shape.text.size() || std::min({s, h, length, d}) < 1 ||
      std::max({s, h, length, d}) > (1 << 24)) {
    throw Error(Errc::invalid_argument, "tune",
                fmt::format("'{}' is no shape of attention; give SEQUENCESxHEADSxLENGTHxHEAD_SIZE "
                            "with sizes from 1 to 16777216, for example 32x12x1024x64",
                            shape.text));
  }
  const int64_t kv_heads = o.kv_heads > 0 ? o.kv_heads : h;
  if (h % kv_heads != 0) {
    throw Error(Errc::invalid_argument, "tune",
                fmt::format("{} heads are no multiple of --kv-heads {}", h, kv_heads));
  }
  const int64_t longest = o.longest > 0 ? o.longest : length;
  if (longest < length || longest > s * length) {
    throw Error(Errc::invalid_argument, "tune",
                fmt::format("--longest {} must be from the mean length {} to all {} rows together",
                            longest, length, s * length));
  }
  return {.dtype = type,
          .head_size = d,
          .v_head_size = d,
          .heads = h,
          .kv_heads = kv_heads,
          .sequences = s,
          .queries = length,
          .keys = length,
          .longest = longest,
          .causal = shape.causal,
          .dropout = o.dropout};
}

void print(const kernels::AttentionTuneResult& r, bool all) {
  fmt::print(R"({{"what":"tune attention","problem":"{}","impl":"{}","ms":{:.5f},)"
             R"("default_ms":{:.5f},"gain":{:.3f},"candidates":{},"refused":{}}})"
             "\n",
             text_of(r.key), r.choice.impl, r.choice.ms, r.choice.default_ms,
             r.choice.default_ms / r.choice.ms, r.rows.size(), r.refused.size());
  for (const auto& row : r.rows) {
    if (!all) break;
    fmt::print(R"({{"what":"tune attention candidate","problem":"{}","impl":"{}","ms":{:.5f}}})"
               "\n",
               text_of(r.key), row.impl, row.ms);
  }
  for (const auto& refusal : r.refused) {
    if (!all) break;
    fmt::print(R"({{"what":"tune attention refusal","problem":"{}","impl":"{}","reason":"{}"}})"
               "\n",
               text_of(r.key), refusal.impl, refusal.reason);
  }
  std::fflush(stdout);
}

}  // namespace

int run_tune_attention(const TuneOptions& o) {
  const DType type = o.dtype == "bf16" ? DType::bf16 : (o.dtype == "f16" ? DType::f16 : DType::f32);
  std::vector<Shape> shapes;
  for (const std::string& text : o.shapes) shapes.push_back({text, o.causal});
  if (shapes.empty()) shapes = default_shapes();
  std::vector<AttentionKey> keys;
  for (const Shape& s : shapes) keys.push_back(parse_key(s, o, type));
  const Device device = parse_device(o.device);
  if (!device.is_cuda()) {
    throw Error(Errc::unsupported, "tune",
                "only GPUs are tuned and none is used here; `saturate info` says what was found");
  }
  use_device(device);
  const kernels::TuneMachine machine = kernels::tune_machine(device);
  if (o.output.empty() && user_cache_folder().empty()) {
    throw Error(Errc::invalid_argument, "tune",
                "no folder for the table: set SATURATE_CACHE or HOME, or give --output FILE");
  }
  const std::string path =
      o.output.empty() ? kernels::attention_table_path(user_cache_folder(), machine) : o.output;
  const Stream stream(device);
  const Context ctx{device, stream.native(), nullptr, 0};
  size_t found = 0;
  for (AttentionKey key : keys) {
    for (const AttentionPass pass : {AttentionPass::forward, AttentionPass::backward}) {
      key.pass = pass;
      kernels::AttentionTuneResult result;
      try {
        result = kernels::tune_attention(ctx, stream, key);
      } catch (const Error& e) {
        if (e.code() != Errc::out_of_memory) throw;
        log_warning(fmt::format("[tune] {} is passed over: {}", text_of(key), e.what()));
        continue;
      }
      kernels::AttentionTable table;
      table.set(key, result.choice);
      kernels::merge_attention_table(path, machine, table);  // at once: an interrupt loses one
      print(result, o.all);
      ++found;
    }
  }
  log_info(fmt::format("{} {} in {}; training and `saturate bench` use them", found,
                       found == 1 ? "choice" : "choices", path));
  return 0;
}

}  // namespace saturate::apps
