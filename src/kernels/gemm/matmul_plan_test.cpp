// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/matmul_plan.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>

#include "base/error.h"
#include "kernels/gemm/blas_library.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/gemm/tune/table.h"

namespace saturate::kernels {
namespace {

class MatmulPlanOnCpu : public ::testing::Test {
 protected:
  MatmulArgs args(float beta = 0.0f) {
    return {.a = a_.data(),
            .b = b_.data(),
            .d = d_.data(),
            .m = 2,
            .n = 2,
            .k = 3,
            .lda = 3,
            .ldb = 2,
            .ldc = 2,
            .ldd = 2,
            .beta = beta};
  }
  std::array<float, 6> a_{1, 2, 3, 4, 5, 6}, b_{1, 0, 0, 1, 1, 1};
  std::array<float, 4> d_{};
  const Context ctx_{};
};

// What multiplies f32 on this processor.
const char* chosen() { return blas_keeps_rows() ? "matmul_blas_cpu" : "matmul_ordered_cpu"; }

KernelOptions only(const char* implementation) {
  KernelOptions options;
  options.matmul = implementation;
  return options;
}

KernelOptions tuned(const GemmTable& table) {
  KernelOptions options;
  options.gemm_table = std::make_shared<GemmTable>(table);
  return options;
}

std::string message_of(const auto& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST_F(MatmulPlanOnCpu, NamesWhatRunsAndRunsIt) {
  const MatmulPlan plan = plan_matmul(ctx_, {}, args());
  EXPECT_EQ(plan.implementation, chosen());
  EXPECT_EQ(plan.configuration, "");
  EXPECT_EQ(plan.workspace_bytes, 0u);
  ASSERT_EQ(plan.refused.size(), 2u) << "the others are for GPUs";
  EXPECT_EQ(plan.refused[0].implementation, "matmul_bf16_cpu");
  plan.run(ctx_, args());
  EXPECT_EQ(d_, (std::array<float, 4>{4, 5, 10, 11}));
  std::array<float, 4> other{};
  MatmulArgs elsewhere = args();
  elsewhere.d = other.data();
  plan.run(ctx_, elsewhere);
  EXPECT_EQ(other, d_) << "a plan serves every memory";
}

TEST_F(MatmulPlanOnCpu, RefusesAnotherProblem) {
  const MatmulPlan plan = plan_matmul(ctx_, {}, args());
  MatmulArgs other = args();
  other.k = 2;
  EXPECT_EQ(message_of([&] { plan.run(ctx_, other); }),
            "[matmul] the plan is for f32 NN 2x2x3 unaligned and not for f32 NN 2x2x2 unaligned; "
            "plan it anew");
  EXPECT_NE(message_of([&] { plan.run(ctx_, args(1.0f)); }), "no error");
}

TEST_F(MatmulPlanOnCpu, AnOptionNamesTheOnlyImplementation) {
  EXPECT_EQ(plan_matmul(ctx_, only("matmul_blas_cpu"), args()).implementation, "matmul_blas_cpu");
  const std::string message = message_of([&] { plan_matmul(ctx_, only("matmul_abacus"), args()); });
  EXPECT_NE(message.find("SATURATE_MATMUL is matmul_abacus; it must be one of "), std::string::npos)
      << message;
  EXPECT_NE(message.find("matmul_blas_cpu"), std::string::npos) << message;
}

TEST_F(MatmulPlanOnCpu, WhatFitsNowhereIsPlannedAndRefusesToRun) {
  MatmulArgs half = args();
  half.ab_type = half.d_type = DType::bf16;
  const MatmulPlan plan = plan_matmul(ctx_, {}, half);
  EXPECT_EQ(plan.implementation, "");
  ASSERT_EQ(plan.refused.size(), 3u);
  EXPECT_EQ(plan.refused[2].implementation, "matmul_blas_cpu");
  EXPECT_EQ(message_of([&] { plan.run(ctx_, half); }),
            "[matmul] no implementation fits on this device (matmul_bf16_cpu: multiplies f32 with "
            "allow_bf16 only; matmul_ordered_cpu: the CPU multiplies f32 and f64 only; "
            "matmul_blas_cpu: the CPU multiplies f32 and f64 only)");
}

TEST_F(MatmulPlanOnCpu, ATableThatCannotRunHereChangesNothing) {
  for (const char* named : {"matmul_wgmma_cuda", "no such thing"}) {
    GemmTable table;
    table.set(gemm_key(args()), {named, "", 1, 1});
    const MatmulPlan plan = plan_matmul(ctx_, tuned(table), args());
    EXPECT_EQ(plan.implementation, chosen());
    ASSERT_FALSE(plan.refused.empty());
    EXPECT_EQ(plan.refused[0].implementation, std::string("tuned ") + named);
  }
  const MatmulPlan plan = plan_matmul(ctx_, tuned({}), args());
  ASSERT_FALSE(plan.refused.empty());
  EXPECT_EQ(plan.refused[0].reason, "holds nothing for this product");
}

TEST_F(MatmulPlanOnCpu, EmptyProductsRunWithoutAnImplementation) {
  const MatmulArgs none{.m = 0, .n = 5, .k = 3};
  plan_matmul(ctx_, {}, none).run(ctx_, none);
}

TEST_F(MatmulPlanOnCpu, PlansAreKeptByProblem) {
  MatmulPlans plans({});
  const auto first = plans.plan(ctx_, args());
  EXPECT_EQ(plans.plan(ctx_, args()), first);
  EXPECT_NE(plans.plan(ctx_, args(1.0f)), first) << "C is read";
  MatmulArgs other = args();
  other.lda = 4;
  EXPECT_NE(plans.plan(ctx_, other), first);
  other = args();
  other.bias = a_.data();
  EXPECT_NE(plans.plan(ctx_, other), first);
  other = args();
  other.a = a_.data() + 1;
  EXPECT_NE(plans.plan(ctx_, other), first) << "another alignment";
}

TEST(KernelOptions, ReadTheEnvironment) {
  ::setenv("SATURATE_MATMUL", "matmul_blas_cpu", 1);
  EXPECT_EQ(kernel_options_from_environment().matmul, "matmul_blas_cpu");
  ::unsetenv("SATURATE_MATMUL");
  EXPECT_EQ(kernel_options_from_environment().matmul, "");
}

}  // namespace
}  // namespace saturate::kernels
