// SPDX-License-Identifier: Apache-2.0
// For tests: device arrays that start as NaN and whose surroundings must survive the kernel.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "runtime/context.h"
#include "runtime/memory.h"
#include "runtime/stream.h"

namespace saturate::testing {

// Bits of the nearest f16 or bf16, ties to even; written apart from the kernels' conversions.
inline uint16_t bits_of(double v, DType type) {
  const int fraction_bits = type == DType::f16 ? 10 : 7;
  const int bias = type == DType::f16 ? 15 : 127;
  const uint16_t sign = std::signbit(v) ? 0x8000u : 0u;
  const auto top = static_cast<uint16_t>(((2 * bias + 1) << fraction_bits) | sign);
  if (std::isnan(v)) return static_cast<uint16_t>(top | 1u << (fraction_bits - 1));
  int e = 0;
  if (std::isfinite(v) && v != 0) std::frexp(v, &e);
  const int exponent = std::max(e - 1, 1 - bias);
  const double quanta = std::nearbyint(std::ldexp(std::fabs(v), fraction_bits - exponent));
  if (exponent > bias) return top;
  if (quanta >= std::ldexp(1.0, fraction_bits + 1) && exponent == bias) return top;
  if (std::isinf(v)) return top;
  // A mantissa that reached the next power of two carries into the exponent by itself.
  const int shifted = (exponent + bias - 1) << fraction_bits;
  const int normal = quanta >= std::ldexp(1.0, fraction_bits) ? shifted : 0;
  return static_cast<uint16_t>((normal + static_cast<int>(quanta)) | sign);
}

inline double value_of(uint16_t bits, DType type) {
  const int fraction_bits = type == DType::f16 ? 10 : 7;
  const int bias = type == DType::f16 ? 15 : 127;
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const int exponent = (bits & 0x7FFF) >> fraction_bits;
  const double sign = (bits & 0x8000) ? -1.0 : 1.0;
  if (exponent == 2 * bias + 1) return fraction ? NAN : sign * INFINITY;
  const int implicit = exponent == 0 ? 0 : 1 << fraction_bits;
  return sign * std::ldexp(fraction + implicit, std::max(exponent, 1) - bias - fraction_bits);
}

// A stream with kernel scratch.
struct TestContext {
  explicit TestContext(Device device) : stream(device), workspace(device, kWorkspaceBytes) {}
  Context get() const {
    return {stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  }
  Stream stream;
  Buffer workspace;
};

class Guarded {
 public:
  // `count` elements of NaN (all bits one: -1 for i32).
  Guarded(const Stream& stream, DType type, int64_t count)
      : stream_(&stream),
        type_(type),
        count_(count),
        buffer_(stream.device(), 2 * kGuard + static_cast<size_t>(count) * size_of(type)) {
    fill_bytes(stream, buffer_.data(), 0xFF, buffer_.bytes());
  }
  Guarded(const Stream& stream, DType type, const std::vector<double>& values)
      : Guarded(stream, type, static_cast<int64_t>(values.size())) {
    set(values);
  }

  void* data() const { return buffer_.as<char>() + kGuard; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  int64_t count() const { return count_; }

  void set(const std::vector<double>& values) const {
    std::vector<char> bytes(values.size() * size_of(type_));
    for (size_t i = 0; i < values.size(); ++i) encode(values[i], &bytes[i * size_of(type_)]);
    copy_to_device(*stream_, data(), bytes.data(), bytes.size());
    stream_->synchronize();
  }

  // Raw bytes, for bitwise comparison; fails the test when a guard byte was changed.
  std::vector<char> bytes() const {
    std::vector<char> all(buffer_.bytes());
    copy_to_host(*stream_, all.data(), buffer_.data(), all.size());
    stream_->synchronize();
    for (size_t i = 0; i < kGuard; ++i) {
      if (all[i] != '\xFF' || all[all.size() - 1 - i] != '\xFF') {
        ADD_FAILURE() << "bytes outside the array were written";
        break;
      }
    }
    return {all.begin() + kGuard, all.end() - kGuard};
  }

  std::vector<double> values() const {
    const std::vector<char> raw = bytes();
    std::vector<double> v(static_cast<size_t>(count_));
    for (size_t i = 0; i < v.size(); ++i) v[i] = decode(&raw[i * size_of(type_)]);
    return v;
  }

 private:
  static constexpr size_t kGuard = 256;  // keeps the array as aligned as the allocation

  template <class T>
  static void put(T v, char* to) {
    std::memcpy(to, &v, sizeof(T));
  }
  template <class T>
  static T get(const char* from) {
    T v;
    std::memcpy(&v, from, sizeof(T));
    return v;
  }
  void encode(double v, char* to) const {
    switch (type_) {
      case DType::f64:
        return put(v, to);
      case DType::f32:
        return put(static_cast<float>(v), to);
      case DType::i32:
        return put(static_cast<int32_t>(v), to);
      default:
        return put(bits_of(v, type_), to);
    }
  }
  double decode(const char* from) const {
    switch (type_) {
      case DType::f64:
        return get<double>(from);
      case DType::f32:
        return static_cast<double>(get<float>(from));
      case DType::i32:
        return get<int32_t>(from);
      default:
        return value_of(get<uint16_t>(from), type_);
    }
  }

  const Stream* stream_;
  DType type_;
  int64_t count_;
  Buffer buffer_;
};

// Normal numbers as `type` holds them: what a reference must start from.
inline std::vector<double> random_values(int64_t count, DType type, uint64_t seed,
                                         double scale = 1.0) {
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal(0.0, scale);
  std::vector<double> v(static_cast<size_t>(count));
  for (double& x : v) {
    x = normal(generator);
    if (type == DType::f32) x = static_cast<double>(static_cast<float>(x));
    if (type == DType::bf16 || type == DType::f16) x = value_of(bits_of(x, type), type);
  }
  return v;
}

// The devices to test on: the CPU, and the first GPU if there is one.
inline std::vector<Device> devices() {
  std::vector<Device> all{Device{}};
  if (cuda_device_count() > 0) all.push_back({DeviceKind::cuda, 0});
  return all;
}

}  // namespace saturate::testing
