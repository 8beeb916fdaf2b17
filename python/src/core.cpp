// SPDX-License-Identifier: Apache-2.0
// The extension module saturate._core: errors, build facts, and the bindings of the other files.
// SATURATE_WITH_MODELS: not only kernels but all layers are built (CMake's SATURATE_PROGRAM).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "base/error.h"
#include "base/features.h"
#include "choices.h"
#if SATURATE_WITH_MODELS
#include "models.h"
#endif
#include "runtime/device.h"
#include "tensor.h"

namespace nb = nanobind;

namespace {

// invalid_argument: ValueError; unsupported: NotImplementedError (a RuntimeError); out_of_memory:
// MemoryError; io: OSError; the rest: RuntimeError.
void translate(const std::exception_ptr& p, void*) {
  try {
    std::rethrow_exception(p);
  } catch (const saturate::Error& e) {
    PyObject* type = PyExc_RuntimeError;
    if (e.code() == saturate::Errc::invalid_argument) type = PyExc_ValueError;
    if (e.code() == saturate::Errc::unsupported) type = PyExc_NotImplementedError;
    if (e.code() == saturate::Errc::out_of_memory) type = PyExc_MemoryError;
    if (e.code() == saturate::Errc::io) type = PyExc_OSError;
    PyErr_SetString(type, e.what());
  }
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "Kernels and models of Saturate. Private: use the functions of the package saturate.";
  nb::register_exception_translator(translate);
  m.attr("version") = SATURATE_VERSION;
  m.attr("with_cuda") = bool(SATURATE_WITH_CUDA);
  m.attr("cuda_architectures") = SATURATE_CUDA_ARCHITECTURES;
  m.def("cuda_device_count", &saturate::cuda_device_count,
        "GPUs that the driver offers; 0 without one or in a build without CUDA.");
  saturate::python::bind_tensor(m);
  const auto choices = std::make_shared<saturate::python::Choices>(
      saturate::kernels::kernel_options_from_environment());
  saturate::python::bind_attention(m, choices);
  saturate::python::bind_conv2d(m);
  saturate::python::bind_matmul(m, choices);
  saturate::python::bind_tuned(m, choices);
#if SATURATE_WITH_MODELS
  saturate::python::bind_models(m);
#endif
}
