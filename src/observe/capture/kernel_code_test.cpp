// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/kernel_code.h"

#include <gtest/gtest.h>

#include "observe/testing/cubin.h"

namespace saturate::observe::cupti {
namespace {

using testing::cubin_of;

// As nvdisasm 13 shows them of code for sm_75 to sm_120, in all forms of their operands.
constexpr uint16_t kDfma = 0x22b, kDfmaConstant = 0xc2b, kDfmaNumber = 0x82b, kDadd = 0x229,
                   kDaddUniform = 0xe29, kDmul = 0x228, kFfma = 0x223, kFfmaNumber = 0x823,
                   kFadd = 0x221, kFmul = 0x820, kHfma2 = 0x431, kMufu = 0x308, kMove = 0x202,
                   kExit = 0x94d;

TEST(KernelCode, MoreOfFloat64ThanOfAllOthers) {
  KernelCode code;
  const std::string module = cubin_of({
      {"_Z4wavePd", {kMove, kDfma, kDfmaConstant, kDfmaNumber, kFfma, kMufu, kExit}},
      {"scaled", {kDadd, kDaddUniform, kDmul, kFadd, kFmul, kExit}},
      {"single", {kFfma, kFfmaNumber, kFadd, kDfma, kExit}},
      {"even", {kDfma, kHfma2, kExit}},
      {"copies", {kMove, kExit}},
      {"empty", {}},
  });
  code.add(module.data(), module.size());
  EXPECT_TRUE(code.computes_in_float64("_Z4wavePd"));
  EXPECT_TRUE(code.computes_in_float64("scaled"));
  for (const char* kernel : {"single", "even", "copies", "empty", "unheard of", ""})
    EXPECT_FALSE(code.computes_in_float64(kernel)) << kernel;
}

TEST(KernelCode, TheModuleThatCameLastCounts) {
  KernelCode code;
  const std::string first = cubin_of({{"kernel", {kDfma}}}), then = cubin_of({{"kernel", {kFfma}}});
  code.add(first.data(), first.size());
  EXPECT_TRUE(code.computes_in_float64("kernel"));
  code.add(then.data(), then.size());
  EXPECT_FALSE(code.computes_in_float64("kernel"));
}

// Before Volta an instruction has eight bytes.
TEST(KernelCode, WhatItDoesNotKnowIsPassedOver) {
  for (const unsigned char layout : {uint8_t{7}, uint8_t{8}}) {
    KernelCode code;
    const std::string old = cubin_of({{"old", {kDfma}}}, 61, layout),
                      turing = cubin_of({{"turing", {kDfma}}}, 75, layout),
                      blackwell = cubin_of({{"blackwell", {kDfma}}}, 120, layout);
    for (const std::string* m : {&old, &turing, &blackwell}) code.add(m->data(), m->size());
    EXPECT_FALSE(code.computes_in_float64("old"));
    EXPECT_TRUE(code.computes_in_float64("turing"));
    EXPECT_TRUE(code.computes_in_float64("blackwell"));
  }
  KernelCode code;
  std::string host = cubin_of({{"host", {kDfma}}});
  host[18] = 62;  // for x86-64
  code.add(host.data(), host.size());
  EXPECT_FALSE(code.computes_in_float64("host"));
  code.add(nullptr, 0);
}

// Nothing outside of the bytes is read: the sanitizer's run sees to that.
TEST(KernelCode, BytesThatAreMissingOrWrong) {
  const std::string whole = cubin_of({{"kernel", {kDfma, kDfma}}, {"second", {kFfma}}});
  for (size_t bytes = 0; bytes < whole.size(); ++bytes) {
    KernelCode code;
    const std::string part = whole.substr(0, bytes);
    code.add(part.data(), part.size());
    EXPECT_FALSE(code.computes_in_float64("second"));
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char wrong : {'\0', '\x7f', '\xff'}) {
      KernelCode code;
      std::string other = whole;
      other[at] = wrong;
      code.add(other.data(), other.size());
    }
  }
}

TEST(KernelCode, NamesThatSayANarrowerType) {
  for (const char* name : {"void at::native::fused_adam<float, 4>(double)", "_Z1aP6__half",
                           "ampere_f16_s16816gemm", "void f<c10::BFloat16>()", "x<float64, float>"})
    EXPECT_TRUE(names_narrow_type(name)) << name;
  for (const char* name : {"kernel", "loop_multiply_fusion", "void f<double>()",
                           "cupy_add__float64_float64_float64", ""})
    EXPECT_FALSE(names_narrow_type(name)) << name;
}

}  // namespace
}  // namespace saturate::observe::cupti
