// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/cached_attention.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit cpu_fits(const Context&, const CachedAttentionArgs& a) noexcept { return fits_cpu(a.dtype); }
Fit avx512_fits(const Context&, const CachedAttentionArgs& a) noexcept {
  if (a.dtype != DType::f32) return {"dtype is not f32"};
  if (a.head_size % 8 != 0) return {"head_size is no multiple of 8"};
  if (a.level < CpuLevel::avx512) return {"no AVX-512 here, or SATURATE_CPU excludes it"};
  return {};
}
#if SATURATE_WITH_CUDA
Fit cuda_fits(const Context&, const CachedAttentionArgs& a) noexcept {
  if (a.head_size > kMaxCachedHeadSize) return {"head_size > 256 (eight channels a lane)"};
  if (a.heads > 65535) return {"more than 65535 heads (grid)"};
  return fits_cuda(a.dtype, a.rows);
}

Fit mma_fits(const Context& ctx, const CachedAttentionArgs& a) noexcept {
  if (a.dtype != DType::bf16 && a.dtype != DType::f16) return {"dtype is neither bf16 nor f16"};
  if (a.head_size != 64 && a.head_size != 128) return {"head_size is neither 64 nor 128"};
  if (capability_of(ctx).major < 8) return {"the GPU is older than compute capability 8.0"};
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (!aligned(a.qkv) || !aligned(a.cache) || !aligned(a.o))
    return {"qkv, cache or o is not aligned to 16 bytes"};
  if (may_share_prefix(a) && room_for_parts(ctx, a) >= 2)
    return {"a shared prefix is read once for all beams"};
  if (a.rows * a.heads > INT32_MAX) return {"2^31 or more rows and heads (grid)"};
  return {};
}

Fit mma_pays(const Context&, const CachedAttentionArgs& a) noexcept {
  if (a.heads == a.kv_heads && a.max_positions <= kShortHistory)
    return {"others are faster with short histories and a query for each key head"};
  return {};
}
#endif

constexpr Impl<CachedAttentionArgs> kCachedAttention[] = {
    SAT_CUDA_IMPL({"cached_attention_mma_cuda", DeviceKind::cuda, mma_fits,
                   cached_attention_mma_cuda, nullptr, mma_pays})
        SAT_CUDA_IMPL({"cached_attention_cuda", DeviceKind::cuda, cuda_fits,
                       cached_attention_cuda}){"cached_attention_avx512_cpu", DeviceKind::cpu,
                                               avx512_fits, cached_attention_avx512_cpu},
    {"cached_attention_cpu", DeviceKind::cpu, cpu_fits, cached_attention_cpu}};

void check_pages(const char* op, const CachedAttentionArgs& a) {
  if (a.starts != nullptr || a.slots != nullptr)
    throw Error(Errc::invalid_argument, op,
                "page_table is set, and so is starts or slots: a paged cache needs neither, pass "
                "null for both");
  if (a.page_size < 1)
    throw Error(
        Errc::invalid_argument, op,
        fmt::format("page_size is {}; a page must hold at least one position", a.page_size));
  const int64_t pages = (a.max_positions + a.page_size - 1) / a.page_size;
  if (a.page_table_stride < pages)
    throw Error(Errc::invalid_argument, op,
                fmt::format("page_table_stride is {}, but max_positions {} take {} pages of {}: "
                            "pass at least {}",
                            a.page_table_stride, a.max_positions, pages, a.page_size, pages));
}

void check_memory(const char* op, const CachedAttentionArgs& a) {
  if (a.positions == nullptr && a.slots == nullptr && a.page_table == nullptr &&
      a.shared_positions == nullptr)
    return;
  throw Error(
      Errc::invalid_argument, op,
      "lengths is set, and so is positions, slots, page_table or shared_positions: a memory "
      "lies in one run of slots, pass null for these");
}

void check_groups(const char* op, const CachedAttentionArgs& a) {
  if (a.group_rows < 1 || a.rows % a.group_rows != 0)
    throw Error(Errc::invalid_argument, op,
                fmt::format("group_rows is {} with shared_positions and {} rows: it must be "
                            "positive and divide rows",
                            a.group_rows, a.rows));
}

}  // namespace

int64_t room_for_parts(const Context& ctx, const CachedAttentionArgs& a) {
  constexpr int64_t kTopAndDenominator = 2;
  const int64_t bytes = (a.head_size + kTopAndDenominator) * int64_t{sizeof(float)};
  return static_cast<int64_t>(ctx.workspace_bytes) / std::max<int64_t>(1, a.rows * a.heads * bytes);
}

int mma_splits(const Context& ctx, const CachedAttentionArgs& a) {
  constexpr int64_t kLeast = 64, kMost = 64;  // positions of a split; splits
  constexpr int64_t kBlocks = 4;              // of a multiprocessor: enough to hide its reads
  if (a.max_positions < 2 * kLeast) return 1;
  const int64_t items = a.rows * a.kv_heads * mma_bundles(a);
  const int64_t wanted = kBlocks * capability_of(ctx).multiprocessors / items;
  const int64_t most = std::min({wanted, a.max_positions / kLeast, kMost, room_for_parts(ctx, a)});
  return static_cast<int>(std::max<int64_t>(1, most));
}

template <>
std::span<const Impl<CachedAttentionArgs>> impls_of() noexcept {
  return kCachedAttention;
}

void cached_attention(const Context& ctx, const CachedAttentionArgs& a) {
  constexpr const char* kOp = "cached_attention";
  require_float(kOp, a.dtype);
  require_sizes(kOp, {{"rows", a.rows}, {"max_positions", a.max_positions}});
  if (a.heads < 1 || a.kv_heads < 1 || a.heads % a.kv_heads != 0 || a.head_size < 1) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("heads is {}, kv_heads {}, head_size {}: all must be positive and "
                            "kv_heads a divisor of heads",
                            a.heads, a.kv_heads, a.head_size));
  }
  if (a.rows == 0) return;
  require_pointers(kOp, {{"qkv", a.qkv}, {"cache", a.cache}, {"o", a.o}});
  a.lengths != nullptr ? check_memory(kOp, a) : require_pointers(kOp, {{"positions", a.positions}});
  a.page_table != nullptr ? check_pages(kOp, a) : require_pointers(kOp, {{"starts", a.starts}});
  if (a.shared_positions != nullptr) check_groups(kOp, a);
  if (a.window < 0 || !(a.soft_cap >= 0.0f) ||
      (a.bias != nullptr && a.bias_stride < a.max_positions)) {
    throw Error(Errc::invalid_argument, kOp,
                fmt::format("window is {}, soft_cap {}, bias_stride {} with max_positions {}: the "
                            "first two must not be negative, and a bias has a number for each "
                            "position",
                            a.window, a.soft_cap, a.bias_stride, a.max_positions));
  }
  dispatch<CachedAttentionArgs>(kOp, ctx, a, kCachedAttention, [&] {
    return shape_text(a.dtype, {a.rows, a.heads, a.kv_heads, a.head_size});
  });
}

}  // namespace saturate::kernels
