// SPDX-License-Identifier: Apache-2.0
// What crosses from Python to a kernel: where an array lies, its shape, strides, type and device.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "runtime/context.h"
#include "runtime/memory.h"

namespace saturate::python {

// A view of memory that Python owns, or an array of our own (`storage`). The view keeps alive what
// it was imported from (`imported`); a view made of an address does not: its maker does.
struct Tensor {
  void* data = nullptr;
  std::vector<int64_t> shape, strides;  // strides in elements
  DType dtype = DType::f32;
  Device device;
  nanobind::ndarray<nanobind::ro> imported;
  std::shared_ptr<Buffer> storage;

  int64_t dims() const { return static_cast<int64_t>(shape.size()); }
  int64_t size() const;
  bool contiguous() const;
};

// The Tensor behind a Python argument: a Tensor, or None (null). Everything else is a TypeError.
using Optional = const Tensor*;

std::string text_of(const std::vector<int64_t>& shape);

// Each throws Error(invalid_argument) that names the operation, the argument, what it is and what
// it must be.
void require(bool ok, const char* op, const std::string& what);
void require_shape(const char* op, const char* name, const Tensor& t,
                   std::initializer_list<int64_t> expected);
void require_type(const char* op, const char* name, const Tensor& t, DType expected);
void require_device(const char* op, const char* name, const Tensor& t, Device expected);
void require_contiguous(const char* op, const char* name, const Tensor& t);

// Makes `device` current while it lives and then the one before again; nothing on the CPU.
class DeviceScope {
 public:
  explicit DeviceScope(Device device);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int before_ = -1;
};

class Choices;
void bind_tensor(nanobind::module_& m);
void bind_attention(nanobind::module_& m, const std::shared_ptr<Choices>& choices);
void bind_conv2d(nanobind::module_& m);
void bind_matmul(nanobind::module_& m, const std::shared_ptr<Choices>& choices);
void bind_tuned(nanobind::module_& m, const std::shared_ptr<Choices>& choices);

}  // namespace saturate::python
