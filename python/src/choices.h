// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/gemm/matmul_plan.h"
#include "runtime/device.h"

namespace saturate::python {

/// What calls from Python choose kernels by: options, tuned tables of each device, and the plans of
/// products. The module owns one; any thread may call.
class Choices {
 public:
  struct OfDevice {
    explicit OfDevice(kernels::KernelOptions o) : options(std::move(o)), products(options) {}
    const kernels::KernelOptions options;
    kernels::MatmulPlans products;
  };

  explicit Choices(kernels::KernelOptions options) : options_(std::move(options)) {}

  // Stays alive while a call uses it.
  std::shared_ptr<OfDevice> of(Device device) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<OfDevice>& found = devices_[index_of(device)];
    if (found == nullptr) found = std::make_shared<OfDevice>(options_);
    return found;
  }

  // Later calls on `device` follow these tables; null: none.
  void use(Device device, std::shared_ptr<const kernels::GemmTable> gemm,
           std::shared_ptr<const kernels::AttentionTable> attention) {
    kernels::KernelOptions options = options_;
    options.gemm_table = std::move(gemm);
    options.attention_table = std::move(attention);
    const std::lock_guard lock(mutex_);
    devices_[index_of(device)] = std::make_shared<OfDevice>(std::move(options));
  }

 private:
  static int index_of(Device device) { return device.is_cuda() ? device.index : -1; }

  const kernels::KernelOptions options_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<OfDevice>> devices_;
};

}  // namespace saturate::python
