// SPDX-License-Identifier: Apache-2.0
#include "tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/features.h"
#if SATURATE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

namespace nb = nanobind;

namespace saturate::python {
namespace {

DType dtype_of(const std::string& name) {
  for (DType t : {DType::f64, DType::f32, DType::bf16, DType::f16, DType::i32})
    if (name == name_of(t)) return t;
  throw nb::type_error(
      fmt::format("dtype is {}; it must be one of f64, f32, bf16, f16, i32", name).c_str());
}

DType dtype_of(nb::dlpack::dtype t) {
  const auto code = static_cast<nb::dlpack::dtype_code>(t.code);
  if (t.lanes == 1) {
    if (code == nb::dlpack::dtype_code::Float && t.bits == 64) return DType::f64;
    if (code == nb::dlpack::dtype_code::Float && t.bits == 32) return DType::f32;
    if (code == nb::dlpack::dtype_code::Float && t.bits == 16) return DType::f16;
    if (code == nb::dlpack::dtype_code::Bfloat && t.bits == 16) return DType::bf16;
    if (code == nb::dlpack::dtype_code::Int && t.bits == 32) return DType::i32;
  }
  throw nb::type_error(
      fmt::format("an array's dtype has DLPack code {}, {} bits, {} lanes; it must be float64, "
                  "float32, bfloat16, float16 or int32",
                  static_cast<int>(t.code), static_cast<int>(t.bits), static_cast<int>(t.lanes))
          .c_str());
}

nb::dlpack::dtype dlpack_of(DType t) {
  using Code = nb::dlpack::dtype_code;
  Code code = Code::Float;
  if (t == DType::bf16) code = Code::Bfloat;
  if (t == DType::i32) code = Code::Int;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * size_of(t)), 1};
}

Tensor view(uintptr_t data, std::vector<int64_t> shape, std::vector<int64_t> strides,
            const std::string& dtype, int cuda_index) {
  Tensor t;
  t.data = reinterpret_cast<void*>(data);
  t.dtype = dtype_of(dtype);
  if (cuda_index >= 0) t.device = {DeviceKind::cuda, cuda_index};
  if (shape.size() != strides.size())
    throw nb::value_error(
        fmt::format("{} sizes but {} strides", shape.size(), strides.size()).c_str());
  t.shape = std::move(shape), t.strides = std::move(strides);
  return t;
}

Tensor from_dlpack(nb::ndarray<nb::ro> array) {
  Tensor t;
  t.data = const_cast<void*>(array.data());  // kernels write only to what is named an output
  t.dtype = dtype_of(array.dtype());
  const int type = array.device_type();
  if (type == nb::device::cuda::value)
    t.device = {DeviceKind::cuda, array.device_id()};
  else if (type != nb::device::cpu::value)
    throw nb::value_error(
        fmt::format("an array lies on DLPack device type {}; it must lie on the CPU or a CUDA GPU",
                    type)
            .c_str());
  for (size_t i = 0; i < array.ndim(); ++i) {
    t.shape.push_back(static_cast<int64_t>(array.shape(i)));
    t.strides.push_back(array.stride(i));
  }
  t.imported = std::move(array);
  return t;
}

std::vector<int64_t> contiguous_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t size = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = size;
    size *= std::max<int64_t>(1, shape[i]);
  }
  return strides;
}

Tensor empty(std::vector<int64_t> shape, const std::string& dtype, int cuda_index) {
  Tensor t;
  t.dtype = dtype_of(dtype);
  if (cuda_index >= 0) t.device = {DeviceKind::cuda, cuda_index};
  t.strides = contiguous_strides(shape);
  t.shape = std::move(shape);
  const DeviceScope scope(t.device);
  const auto elements = static_cast<size_t>(std::max<int64_t>(1, t.size()));
  t.storage = std::make_shared<Buffer>(t.device, elements * size_of(t.dtype));
  t.data = t.storage->data();
  return t;
}

// The array of a Tensor that `empty` made: NumPy's on the CPU, else one that speaks DLPack.
nb::object array_of(const Tensor& t) {
  if (t.storage == nullptr) throw nb::value_error("array(): the memory is not ours to give");
  auto* held = new std::shared_ptr<Buffer>(t.storage);
  const nb::capsule owner(
      held, [](void* p) noexcept { delete static_cast<std::shared_ptr<Buffer>*>(p); });
  const std::vector<size_t> shape(t.shape.begin(), t.shape.end());
  if (t.device.is_cuda())
    return nb::cast(nb::ndarray<nb::array_api>(t.data, shape.size(), shape.data(), owner,
                                               t.strides.data(), dlpack_of(t.dtype),
                                               nb::device::cuda::value, t.device.index));
  return nb::cast(nb::ndarray<nb::numpy>(t.data, shape.size(), shape.data(), owner,
                                         t.strides.data(), dlpack_of(t.dtype)));
}

// The same memory under another shape; without strides it must be contiguous and stay so.
Tensor reshaped(const Tensor& t, std::vector<int64_t> shape,
                std::optional<std::vector<int64_t>> strides) {
  Tensor x = t;
  x.shape = std::move(shape);
  if (x.size() != t.size())
    throw nb::value_error(
        fmt::format("{} has not as many elements as {}", text_of(x.shape), text_of(t.shape))
            .c_str());
  if (strides) {
    if (strides->size() != x.shape.size())
      throw nb::value_error(
          fmt::format("{} sizes but {} strides", x.shape.size(), strides->size()).c_str());
    x.strides = std::move(*strides);
  } else {
    x.strides = contiguous_strides(x.shape);
  }
  return x;
}

}  // namespace

int64_t Tensor::size() const {
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  return n;
}

bool Tensor::contiguous() const {
  int64_t expected = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return size() == 0;
    expected *= shape[i];
  }
  return true;
}

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("({}{})", fmt::join(shape, ", "), shape.size() == 1 ? "," : "");
}

void require(bool ok, const char* op, const std::string& what) {
  if (!ok) throw Error(Errc::invalid_argument, op, what);
}

void require_shape(const char* op, const char* name, const Tensor& t,
                   std::initializer_list<int64_t> expected) {
  const std::vector<int64_t> want(expected);
  require(t.shape == want, op,
          fmt::format("{} has shape {}; it must be {}", name, text_of(t.shape), text_of(want)));
}

void require_type(const char* op, const char* name, const Tensor& t, DType expected) {
  if (t.dtype != expected)
    throw nb::type_error(
        fmt::format("[{}] {} is {}; it must be {}", op, name, name_of(t.dtype), name_of(expected))
            .c_str());
}

void require_device(const char* op, const char* name, const Tensor& t, Device expected) {
  require(t.device == expected, op,
          fmt::format("{} lies on {}, other arguments on {}; move all to one device", name,
                      to_string(t.device), to_string(expected)));
}

void require_contiguous(const char* op, const char* name, const Tensor& t) {
  require(t.contiguous(), op,
          fmt::format("{} of shape {} has strides {}; make it contiguous", name, text_of(t.shape),
                      text_of(t.strides)));
}

DeviceScope::DeviceScope(Device device) {
  if (!device.is_cuda()) return;
#if SATURATE_WITH_CUDA
  int now = -1;
  if (cudaGetDevice(&now) == cudaSuccess && now != device.index) before_ = now;
#endif
  use_device(device);
}

DeviceScope::~DeviceScope() {
#if SATURATE_WITH_CUDA
  if (before_ >= 0) cudaSetDevice(before_);
#endif
}

void bind_tensor(nb::module_& m) {
  nb::class_<Tensor>(m, "Tensor", "A view of an array on the CPU or a GPU, or an array of its own.")
      .def_static("view", &view, nb::arg("data"), nb::arg("shape"), nb::arg("strides"),
                  nb::arg("dtype"), nb::arg("cuda_index") = -1,
                  "The caller keeps the memory alive; strides in elements; cuda_index -1: CPU.")
      .def_static("from_dlpack", &from_dlpack, nb::arg("array").noconvert(),
                  "A view that keeps `array` alive.")
      .def_static("empty", &empty, nb::arg("shape"), nb::arg("dtype"), nb::arg("cuda_index") = -1)
      .def("reshaped", &reshaped, nb::arg("shape"), nb::arg("strides").none(),
           "The same memory under another shape; without strides it is contiguous.")
      .def("array", &array_of, "The memory of an `empty` Tensor as an array that owns it.")
      .def_prop_ro("shape", [](const Tensor& t) { return nb::tuple(nb::cast(t.shape)); })
      .def_prop_ro("strides", [](const Tensor& t) { return nb::tuple(nb::cast(t.strides)); })
      .def_prop_ro("dtype", [](const Tensor& t) { return std::string(name_of(t.dtype)); })
      .def_prop_ro("cuda_index",
                   [](const Tensor& t) { return t.device.is_cuda() ? t.device.index : -1; });
}

}  // namespace saturate::python
