// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstddef>
#include <cstdint>

namespace saturate {

// Element types. f64 exists for references and gradient checks on the CPU only.
enum class DType : uint8_t { f64, f32, bf16, f16, i32 };

constexpr size_t size_of(DType t) noexcept {
  switch (t) {
    case DType::f64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
  }
  return 0;
}

constexpr const char* name_of(DType t) noexcept {
  switch (t) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
  }
  return "?";
}

// Distance from 1 to the next number: the unit of the tests' error bounds.
constexpr double epsilon_of(DType t) noexcept {
  switch (t) {
    case DType::f64:
      return 0x1p-52;
    case DType::f32:
      return 0x1p-23;
    case DType::bf16:
      return 0x1p-7;
    case DType::f16:
      return 0x1p-10;
    case DType::i32:
      return 0;
  }
  return 0;
}

// Type in which norm weights, statistics, losses and sums are held: f64 for f64, otherwise f32.
constexpr DType wide_of(DType t) noexcept { return t == DType::f64 ? DType::f64 : DType::f32; }

}  // namespace saturate
