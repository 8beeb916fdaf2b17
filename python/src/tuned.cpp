// SPDX-License-Identifier: Apache-2.0
// Tuned tables (`saturate tune`) for Python: reads them and makes the kernels choose by them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <tuple>

#include "base/cache_folder.h"
#include "base/error.h"
#include "choices.h"
#include "kernels/attention/tune/table.h"
#include "kernels/gemm/tune/table.h"
#include "tensor.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

Device gpu(int cuda_index) {
  const int count = cuda_device_count();
  if (cuda_index < 0 || cuda_index >= count)
    throw Error(Errc::invalid_argument, "use_tuned",
                "there is no GPU " + std::to_string(cuda_index) + "; the driver offers " +
                    std::to_string(count));
  return {DeviceKind::cuda, cuda_index};
}

// Entries in use of products and of attention, and what is wrong with the files ("" each: nothing).
std::tuple<size_t, size_t, std::string, std::string> use_tuned(Choices& choices,
                                                               const std::string& folder,
                                                               int cuda_index) {
  const Device device = gpu(cuda_index);
  const kernels::TuneMachine machine = kernels::tune_machine(device);
  const std::string place = folder.empty() ? user_cache_folder() : folder;
  kernels::ReadGemmTable gemm;
  kernels::ReadAttentionTable attention;
  if (!place.empty()) {
    gemm = kernels::read_gemm_table(kernels::gemm_table_path(place, machine), machine);
    attention =
        kernels::read_attention_table(kernels::attention_table_path(place, machine), machine);
  }
  const std::tuple found{gemm.table.entries().size(), attention.table.entries().size(),
                         gemm.problem, attention.problem};
  choices.use(device, std::make_shared<const kernels::GemmTable>(std::move(gemm.table)),
              std::make_shared<const kernels::AttentionTable>(std::move(attention.table)));
  return found;
}

void use_untuned(Choices& choices, int cuda_index) {
  choices.use(gpu(cuda_index), nullptr, nullptr);
}

}  // namespace

void bind_tuned(nb::module_& m, const std::shared_ptr<Choices>& choices) {
  m.def(
      "use_tuned",
      [choices](const std::string& folder, int cuda_index) {
        return use_tuned(*choices, folder, cuda_index);
      },
      nb::arg("folder"), nb::arg("cuda_index"),
      "Reads the tables of that folder (empty: the user's cache) and chooses kernels by them.");
  m.def(
      "use_untuned", [choices](int cuda_index) { use_untuned(*choices, cuda_index); },
      nb::arg("cuda_index"), "Chooses kernels without tables.");
}

}  // namespace saturate::python
