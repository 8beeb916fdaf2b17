// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/cached_attention.h"

#include <fmt/format.h>

#include "kernels/decode/cached_attention_impl.h"
#include "kernels/dispatch.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

Fit cpu_fits(const Context&, const CachedAttentionArgs& a) noexcept { return fits_cpu(a.dtype); }
#if SATURATE_WITH_CUDA
Fit cuda_fits(const Context&, const CachedAttentionArgs& a) noexcept {
  if (a.head_size > kMaxCachedHeadSize) return {"head_size > 256 (eight channels a lane)"};
  if (a.heads > 65535) return {"more than 65535 heads (grid)"};
  return fits_cuda(a.dtype, a.rows);
}
#endif

constexpr Impl<CachedAttentionArgs> kCachedAttention[] = {
    SAT_CUDA_IMPL({"cached_attention_cuda", DeviceKind::cuda, cuda_fits, cached_attention_cuda}){
        "cached_attention_cpu", DeviceKind::cpu, cpu_fits, cached_attention_cpu}};

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
