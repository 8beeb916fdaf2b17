// SPDX-License-Identifier: Apache-2.0
// For tests that run once on each device and dtype that kernels take.
#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/philox.h"
#include "kernels/testing/guarded.h"

namespace saturate::testing {

using Values = std::vector<double>;

struct Target {
  DeviceKind kind;
  DType dtype;
};

inline auto all_targets() {
  return ::testing::Values(Target{DeviceKind::cpu, DType::f32}, Target{DeviceKind::cpu, DType::f64},
                           Target{DeviceKind::cuda, DType::f32},
                           Target{DeviceKind::cuda, DType::bf16},
                           Target{DeviceKind::cuda, DType::f16});
}
inline std::string target_name(const ::testing::TestParamInfo<Target>& info) {
  return std::string(info.param.kind == DeviceKind::cuda ? "cuda_" : "cpu_") +
         name_of(info.param.dtype);
}

// The value as `type` holds it.
inline double rounded(double v, DType type) {
  if (type == DType::f64) return v;
  if (type == DType::f32) return static_cast<double>(static_cast<float>(v));
  return value_of(bits_of(v, type), type);
}

// |got - want| <= unit * |want| + slack[i]; an empty slack counts as zero.
inline void expect_close(const char* what, const Values& got, const Values& want, double unit,
                         const Values& slack = {}) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double bound = unit * std::fabs(want[i]) + (slack.empty() ? 0.0 : slack[i]);
    if (!(std::fabs(got[i] - want[i]) <= bound)) {
      FAIL() << what << "[" << i << "] is " << got[i] << ", not " << want[i] << " +- " << bound;
    }
  }
}

// Counters in the memory of a device, and the reference's view of the same dropout.
class TestRng {
 public:
  TestRng(const Stream& stream, float p) : p_(p), buffer_(stream.device(), sizeof(kState)) {
    copy_to_device(stream, buffer_.data(), kState, sizeof(kState));
    stream.synchronize();
  }
  RngRef ref() const { return {buffer_.as<uint64_t>(), kSite}; }
  // Uniform in [0, 1), of 24 bits.
  static double uniform(int64_t element) {
    const Random4 r = random_block(kState[0], kState[1], kSite, static_cast<uint64_t>(element / 4));
    return static_cast<double>(r.x[element % 4] >> 8) * 0x1p-24;
  }
  double factor(int64_t element) const {
    if (p_ == 0.0f) return 1.0;
    const Random4 r = random_block(kState[0], kState[1], kSite, static_cast<uint64_t>(element / 4));
    return r.x[element % 4] >= dropout_threshold(p_) ? 1.0 / (1.0 - static_cast<double>(p_)) : 0.0;
  }

 private:
  static constexpr uint64_t kState[2] = {0x1234567890ABCDEFull, 77};
  static constexpr uint32_t kSite = 5;
  float p_;
  Buffer buffer_;
};

class OnTarget : public ::testing::TestWithParam<Target> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    context_.emplace(Device{GetParam().kind, 0});
  }
  DType dtype() const { return GetParam().dtype; }
  DType wide() const { return wide_of(GetParam().dtype); }
  double unit() const { return epsilon_of(dtype()); }      // of what is stored
  double wide_unit() const { return epsilon_of(wide()); }  // of the arithmetic
  const TestContext& context() const { return *context_; }
  Context ctx() const { return context_->get(); }
  const Stream& stream() const { return context_->stream; }
  Guarded array(const Values& v) const { return Guarded(stream(), dtype(), v); }
  Guarded wide_array(const Values& v) const { return Guarded(stream(), wide(), v); }
  Guarded poison(int64_t count) const { return Guarded(stream(), dtype(), count); }
  Guarded wide_poison(int64_t count) const { return Guarded(stream(), wide(), count); }
  Values random(int64_t count, uint64_t seed) const { return random_values(count, dtype(), seed); }
  Values wide_random(int64_t count, uint64_t seed) const {
    return random_values(count, wide(), seed);
  }

 private:
  std::optional<TestContext> context_;
};

}  // namespace saturate::testing
