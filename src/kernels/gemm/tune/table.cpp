// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/table.h"

#include <fmt/format.h>

namespace saturate::kernels {
namespace {

bool on_16_bytes(const void* p, int64_t ld, DType type) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 &&
         ld * static_cast<int64_t>(size_of(type)) % 16 == 0;
}

}  // namespace

GemmKey gemm_key(const MatmulArgs& x) noexcept {
  const bool reads_c = x.beta != 0.0f && x.c != nullptr;
  const bool aligned = on_16_bytes(x.a, x.lda, x.ab_type) && on_16_bytes(x.b, x.ldb, x.ab_type) &&
                       on_16_bytes(x.d, x.ldd, x.d_type) &&
                       (!reads_c || on_16_bytes(x.c, x.ldc, x.d_type)) &&
                       reinterpret_cast<uintptr_t>(x.bias) % 16 == 0;
  return {.ab_type = x.ab_type,
          .d_type = x.d_type,
          .ta = x.ta,
          .tb = x.tb,
          .tf32 = x.ab_type == DType::f32 && x.allow_tf32,
          .accumulates = x.beta != 0.0f,
          .bias = x.bias != nullptr,
          .aligned = aligned,
          .m = x.m,
          .n = x.n,
          .k = x.k};
}

std::string text_of(const GemmKey& key) {
  return fmt::format("{}{}{} {}{} {}x{}x{}{}{}{}", name_of(key.ab_type), key.tf32 ? " (tf32)" : "",
                     key.d_type == key.ab_type ? "" : fmt::format(" to {}", name_of(key.d_type)),
                     key.ta == Transpose::yes ? "T" : "N", key.tb == Transpose::yes ? "T" : "N",
                     key.m, key.n, key.k, key.accumulates ? " + c" : "", key.bias ? " + bias" : "",
                     key.aligned ? "" : " unaligned");
}

GemmKey class_of(const GemmKey& key) noexcept {
  GemmKey c = key;
  c.m = shape_class(key.m);
  c.n = shape_class(key.n);
  c.k = shape_class(key.k);
  return c;
}

void GemmTable::set(const GemmKey& key, GemmChoice choice) {
  exact_.insert_or_assign(key, std::move(choice));
  const auto volume = [](const GemmKey& x) {
    return static_cast<double>(x.m) * static_cast<double>(x.n) * static_cast<double>(x.k);
  };
  const auto [at, fresh] = representative_.try_emplace(class_of(key), key);
  const double now = volume(at->second), other = volume(key);
  // The order in which entries come must not matter, or two files with one content would differ.
  if (!fresh && (other > now || (other == now && key < at->second))) at->second = key;
}

const GemmChoice* GemmTable::find(const GemmKey& key) const noexcept {
  if (const auto at = exact_.find(key); at != exact_.end()) return &at->second;
  const auto near = representative_.find(class_of(key));
  return near == representative_.end() ? nullptr : &exact_.find(near->second)->second;
}

}  // namespace saturate::kernels
