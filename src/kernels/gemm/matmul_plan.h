// SPDX-License-Identifier: Apache-2.0
// How one product will run: chosen once, when it is recorded or first called.
#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/gemm/matmul.h"
#include "kernels/options.h"

namespace saturate::kernels {

struct MatmulRefusal {
  std::string implementation;  // with its configuration where a table named one
  std::string reason;
};

/// Choice of an implementation for products of one problem. Copies share nothing that changes, so
/// several threads may run them.
class MatmulPlan {
 public:
  using Launch = std::function<void(const Context&, const MatmulArgs&)>;

  std::string implementation;  // "matmul_cublaslt_cuda"; "": nothing fits, or an empty product
  std::string configuration;   // "": the implementation's own choice
  size_t workspace_bytes = 0;  // what run() takes of the context's workspace
  bool epilogue_pays = false;  // faster than the plain product and kernels behind it would be
  std::vector<MatmulRefusal> refused;  // why none of the others of this device runs

  // D as matmul() computes it, for the pointers and factors in `args`; sizes, layout, types, options
  // and which pointers are null must be those of the plan's problem, and pointers aligned as there.
  //
  // Errors    invalid_argument where they are not, or where ctx has less workspace than
  //           workspace_bytes; unsupported, with every refusal, when no implementation fits; device.
  void run(const Context& ctx, const MatmulArgs& args) const;

 private:
  friend MatmulPlan plan_matmul(const Context&, const KernelOptions&, const MatmulArgs&);
  MatmulArgs problem_;
  Launch launch_;
};

// The plan of `problem`: what the tuned table names for it, if that can run, else the first of the
// ordered list that fits. Of ctx the device and workspace_bytes (the most a plan may take) count. Of
// the problem's pointers only null and alignment, up to 256 bytes, count, of beta only zero; no
// memory is touched. A problem that no implementation fits gives a plan that says so and cannot run.
//
// Order     the same inputs give the same plan on one machine.
// Errors    invalid_argument for shapes, null pointers, and when options.matmul names nothing.
// Cost      on a GPU one question to cuBLASLt, 20 to 100 us, for a problem that is new to the
//           process; 2 us else. With a tuned table the first plan may load or compile a kernel.
MatmulPlan plan_matmul(const Context& ctx, const KernelOptions& options, const MatmulArgs& problem);

// The most workspace that is worth giving to this product: 32 MiB on a GPU, or what the parts of
// large f32 operands take, up to matmul_workspace_bytes().
size_t matmul_workspace_limit(Device device, const MatmulArgs& problem);

/// Plans by problem, for callers that meet their products one by one. Any thread may call.
class MatmulPlans {
 public:
  explicit MatmulPlans(KernelOptions options) : options_(std::move(options)) {}
  std::shared_ptr<const MatmulPlan> plan(const Context& ctx, const MatmulArgs& problem);

 private:
  const KernelOptions options_;
  std::mutex mutex_;
  std::map<std::array<int64_t, 28>, std::shared_ptr<const MatmulPlan>> plans_;
};

}  // namespace saturate::kernels
