// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/packed/packed_linear.h"

#include <fmt/format.h>

#include "kernels/gemm/packed/packed_impl.h"
#include "kernels/host/validate.h"
#include "kernels/lists.h"

namespace saturate::kernels {
namespace {

constexpr const char* kOp = "packed_linear";

template <PackedType kType, CpuLevel kLevel>
Fit fits(const Context&, const PackedLinearArgs& a) noexcept {
  if (a.w.type != kType) {
    if (kType == PackedType::f32) return {"the weights are not f32"};
    if (kType == PackedType::bf16) return {"the weights are not bf16"};
    return {"the weights are not s8"};
  }
  if (kLevel == CpuLevel::amx && kType == PackedType::s8 && a.w.k % 64 != 0)
    return {"k is no multiple of 64 (a tile)"};
  if (kLevel == CpuLevel::amx && a.w.k % 32 != 0) return {"k is no multiple of 32 (a tile)"};
  if (a.level >= kLevel) return {};
  if (kLevel == CpuLevel::amx) return {"no AMX here, or SATURATE_CPU excludes it"};
  if (kLevel == CpuLevel::bf16) return {"no AVX512-BF16 here, or SATURATE_CPU excludes it"};
  if (kLevel == CpuLevel::vnni) return {"no VNNI here, or SATURATE_CPU excludes it"};
  if (kLevel == CpuLevel::avx512) return {"no AVX-512 here, or SATURATE_CPU excludes it"};
  return {"no AVX2 here, or SATURATE_CPU excludes it"};
}

constexpr Impl<PackedLinearArgs> kImpls[] = {
    {"packed_f32_avx512_cpu", DeviceKind::cpu, fits<PackedType::f32, CpuLevel::avx512>,
     packed::linear_f32_avx512},
    {"packed_f32_avx2_cpu", DeviceKind::cpu, fits<PackedType::f32, CpuLevel::avx2>,
     packed::linear_f32_avx2},
    {"packed_f32_plain_cpu", DeviceKind::cpu, fits<PackedType::f32, CpuLevel::plain>,
     packed::linear_f32_plain},
    {"packed_bf16_amx_cpu", DeviceKind::cpu, fits<PackedType::bf16, CpuLevel::amx>,
     packed::linear_bf16_amx, packed::bf16_scratch_bytes},
    {"packed_bf16_dot_cpu", DeviceKind::cpu, fits<PackedType::bf16, CpuLevel::bf16>,
     packed::linear_bf16_dot, packed::bf16_scratch_bytes},
    {"packed_bf16_avx512_cpu", DeviceKind::cpu, fits<PackedType::bf16, CpuLevel::avx512>,
     packed::linear_bf16_avx512, packed::bf16_scratch_bytes},
    {"packed_bf16_avx2_cpu", DeviceKind::cpu, fits<PackedType::bf16, CpuLevel::avx2>,
     packed::linear_bf16_avx2, packed::bf16_scratch_bytes},
    {"packed_bf16_plain_cpu", DeviceKind::cpu, fits<PackedType::bf16, CpuLevel::plain>,
     packed::linear_bf16_plain, packed::bf16_scratch_bytes},
    {"packed_s8_amx_cpu", DeviceKind::cpu, fits<PackedType::s8, CpuLevel::amx>,
     packed::linear_s8_amx, packed::s8_scratch_bytes},
    {"packed_s8_vnni_cpu", DeviceKind::cpu, fits<PackedType::s8, CpuLevel::vnni>,
     packed::linear_s8_vnni, packed::s8_scratch_bytes},
    {"packed_s8_avx2_cpu", DeviceKind::cpu, fits<PackedType::s8, CpuLevel::avx2>,
     packed::linear_s8_avx2, packed::s8_scratch_bytes},
    {"packed_s8_plain_cpu", DeviceKind::cpu, fits<PackedType::s8, CpuLevel::plain>,
     packed::linear_s8_plain, packed::s8_scratch_bytes},
};

const char* name_of(PackedType type) noexcept {
  if (type == PackedType::s8) return "s8";
  return type == PackedType::f32 ? "f32" : "bf16";
}

void check(const PackedLinearArgs& a) {
  require_sizes(kOp, {{"rows", a.rows}, {"n", a.w.n}, {"k", a.w.k}});
  if (a.ldx >= a.w.k && a.ldy >= a.w.n) return;
  throw Error(Errc::invalid_argument, kOp,
              fmt::format("x is ({}, {}) with stride {} and y ({}, {}) with stride {}: a stride "
                          "must be no less than the row",
                          a.rows, a.w.k, a.ldx, a.rows, a.w.n, a.ldy));
}

}  // namespace

template <>
std::span<const Impl<PackedLinearArgs>> impls_of() noexcept {
  return kImpls;
}

Plan<PackedLinearArgs> plan_packed_linear(const Context& ctx, const PackedLinearArgs& a) {
  check(a);
  return plan_of<PackedLinearArgs>(kOp, ctx, a, kImpls, [&] {
    return fmt::format("{} {}x{}x{}", name_of(a.w.type), a.rows, a.w.n, a.w.k);
  });
}

void packed_linear(const Context& ctx, const PackedLinearArgs& a) {
  const Plan<PackedLinearArgs> plan = plan_packed_linear(ctx, a);
  if (a.rows == 0) return;
  require_pointers(kOp, {{"x", a.x}, {"y", a.y}, {"the packed weights", a.w.panels}});
  const Buffer scratch(ctx.device, static_cast<size_t>(plan.workspace_bytes));
  Context own = ctx;
  own.workspace = scratch.data(), own.workspace_bytes = scratch.bytes();
  plan.run(own, a);
}

}  // namespace saturate::kernels
