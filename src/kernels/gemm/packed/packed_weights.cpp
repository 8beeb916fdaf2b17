// SPDX-License-Identifier: Apache-2.0
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "kernels/gemm/packed/packed_block.h"
#include "kernels/gemm/packed/packed_impl.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

using packed::kLine;
using packed::kPanel;

int64_t steps_of(PackedType type, int64_t k) {
  switch (type) {
    case PackedType::f32:
      return k;
    case PackedType::bf16:
      return (k + 1) / 2;
    case PackedType::s8:
      return (k + 3) / 4;
  }
  return k;
}

void require_sizes(int64_t n, int64_t k) {
  if (n >= 1 && k >= 1) return;
  throw Error(Errc::invalid_argument, "pack",
              fmt::format("weights are ({}, {}); both must be at least 1", n, k));
}

// Of weights that lie at `data`.
PackedView view_of(PackedType type, int64_t n, int64_t k, const char* data) {
  PackedView v{.type = type, .n = n, .k = k, .panels = data};
  if (type != PackedType::s8) return v;
  const int64_t panels = (n + kPanel - 1) / kPanel;
  v.scales = reinterpret_cast<const float*>(data + panels * steps_of(type, k) * kLine);
  v.offsets = reinterpret_cast<const int32_t*>(v.scales + panels * kPanel);
  return v;
}

}  // namespace

size_t PackedWeights::bytes_of(PackedType type, int64_t n, int64_t k) noexcept {
  const int64_t panels = (n + kPanel - 1) / kPanel;
  const int64_t constants = type == PackedType::s8 ? 8 : 0;  // a scale and an offset
  return static_cast<size_t>(panels * (steps_of(type, k) * kLine + kPanel * constants));
}

PackedWeights::PackedWeights(PackedType type, int64_t n, int64_t k, const char* data) {
  require_sizes(n, k);
  view_ = view_of(type, n, k, data);
  bytes_ = bytes_of(type, n, k);
}

char* PanelMemory::take(size_t bytes) {
  constexpr size_t kPage = size_t{1} << 21, kMost = size_t{1} << 25, kTogether = 256;
  bytes = (bytes + kTogether - 1) / kTogether * kTogether;
  const std::lock_guard lock(mutex_);
  if (bytes > left_) {
    // As much as there is already, so that small models stay small.
    size_t size = kPage;
    for (const Buffer& b : blocks_) size = std::min(size + b.bytes(), kMost);
    size = (std::max(size, bytes) + kPage - 1) / kPage * kPage;
    const Buffer& block = blocks_.emplace_back(Device{}, size + kPage);
    next_ = block.as<char>();
    next_ += (kPage - reinterpret_cast<uintptr_t>(next_) % kPage) % kPage;
    left_ = size;
    static_cast<void>(madvise(next_, size, MADV_HUGEPAGE));  // where there are none: small ones
  }
  char* const taken = next_;
  next_ += bytes, left_ -= bytes;
  return taken;
}

PackedWeights::PackedWeights(PackedType type, int64_t n, int64_t k, const Rows& rows,
                             PanelMemory* memory) {
  require_sizes(n, k);
  static_assert(kRowsAtOnce == kPanel);
  const bool s8 = type == PackedType::s8;
  const int64_t panels = (n + kPanel - 1) / kPanel, panel_bytes = steps_of(type, k) * kLine;
  bytes_ = bytes_of(type, n, k);
  if (memory == nullptr) memory_ = Buffer({}, bytes_);
  char* const data = memory == nullptr ? memory_.as<char>() : memory->take(bytes_);
  view_ = view_of(type, n, k, data);
  auto* const scales = const_cast<float*>(view_.scales);
  auto* const offsets = const_cast<int32_t*>(view_.offsets);
  parallel_for(panels, std::max<int64_t>(1, 65536 / (k * kPanel)), [&](int64_t begin, int64_t end) {
    std::vector<float> room(static_cast<size_t>(kPanel * k));
    for (int64_t p = begin; p < end; ++p) {
      const int64_t first = p * kPanel, count = std::min(kPanel, n - first);
      char* const panel = data + p * panel_bytes;
      const float* const w = rows(first, count, room.data());
      if (s8) {
        std::fill_n(scales + first + count, kPanel - count, 0.0f);
        std::fill_n(offsets + first + count, kPanel - count, 0);
        packed::pack_panel_s8(w, count, k, panel, scales + first, offsets + first);
      } else {
        if (count < kPanel) std::memset(panel, 0, static_cast<size_t>(panel_bytes));
        type == PackedType::f32 ? packed::pack_panel_f32(w, count, k, panel)
                                : packed::pack_panel_bf16(w, count, k, panel);
      }
    }
  });
}

void unpack_rows(const PackedView& w, const int32_t* ids, int64_t rows, float* out) {
  const int64_t steps = steps_of(w.type, w.k);
  constexpr int64_t kRowGrain = 32;
  parallel_for(rows, kRowGrain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      float* const y = out + t * w.k;
      const int64_t row = ids[t];
      if (row < 0 || row >= w.n) {
        std::fill_n(y, w.k, 0.0f);
        continue;
      }
      const char* const panel = w.panels + row / kPanel * steps * kLine;
      if (w.type == PackedType::s8) {
        const auto* const q = reinterpret_cast<const int8_t*>(panel) + row % kPanel * 4;
        for (int64_t c = 0; c < w.k; ++c)
          y[c] = static_cast<float>(q[c / 4 * kLine + c % 4]) * w.scales[row];
      } else if (w.type == PackedType::bf16) {
        const auto* const pairs = reinterpret_cast<const uint32_t*>(panel) + row % kPanel;
        for (int64_t c = 0; c < w.k; ++c) {
          const uint32_t pair = pairs[c / 2 * kPanel];
          y[c] = std::bit_cast<float>(c % 2 == 0 ? pair & 0xffff0000u : pair << 16);
        }
      } else {
        const auto* const v = reinterpret_cast<const float*>(panel) + row % kPanel;
        for (int64_t c = 0; c < w.k; ++c) y[c] = v[c * kPanel];
      }
    }
  });
}

PackedWeights::PackedWeights(PackedType type, const float* w, int64_t n, int64_t k,
                             PanelMemory* memory)
    : PackedWeights(
          type, n, k, [w, k](int64_t first, int64_t, float*) { return w + first * k; }, memory) {}

namespace {

// Whether the processor has tiles of bytes and of bf16 (CPUID leaf 7, EDX bits 24, 25 and 22): clang
// 16's builtin does not know their names.
bool has_tiles() noexcept {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kAll = 1u << 24 | 1u << 25 | 1u << 22;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kAll) == kAll;
#else
  return false;
#endif
}

// Whether the system lets this process use tiles, which it must be asked for.
bool tiles_allowed() noexcept {
#if defined(__x86_64__) && defined(__linux__)
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

CpuLevel cpu_level() noexcept {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return CpuLevel::plain;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return CpuLevel::avx2;
  }
  if (!__builtin_cpu_supports("avx512vnni")) return CpuLevel::avx512;
  if (!__builtin_cpu_supports("avx512bf16")) return CpuLevel::vnni;
  static const bool tiles = has_tiles() && tiles_allowed();
  return tiles ? CpuLevel::amx : CpuLevel::bf16;
#else
  return CpuLevel::plain;
#endif
}

}  // namespace saturate::kernels
