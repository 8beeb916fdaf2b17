// SPDX-License-Identifier: Apache-2.0
#include "observe/analyse/stack_kinds.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "observe/analyse/stack_words.h"

namespace saturate::observe {
namespace {

bool has_any(std::string_view text, std::initializer_list<std::string_view> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](std::string_view part) {
    return text.find(part) != std::string_view::npos;
  });
}

std::string_view last_name(std::string_view function) {
  return function.substr(function.rfind('.') + 1);
}

// What runs compiled code lies in the same folders as what makes it, so files and not folders.
bool makes_code(std::string_view file, std::string_view function) {
  const std::string_view name = last_name(function);
  if (name == "<module>") return false;  // it is being imported
  if (has_any(file, {"torch/_inductor/compile_fx.py"}))
    return name != "run" && name != "__call__" && name != "wrapper";
  if (has_any(file, {"torch/_inductor/runtime/triton_heuristics.py"}))
    return has_any(name, {"compile", "benchmark", "autotune", "make_launcher"});
  return has_any(file, {"torch/_dynamo/convert_frame.py", "torch/_inductor/codecache.py",
                        "torch/_inductor/async_compile.py", "torch/_inductor/graph.py",
                        "torch/utils/cpp_extension.py", "triton/compiler/", "jax/_src/compiler.py",
                        "cupy/cuda/compiler.py", "numba/core/compiler.py", "libnvrtc.so",
                        "libnvrtc-", "libnvJitLink.so", "libnvvm.so"});
}

bool fetches(std::string_view file, std::string_view function) {
  if (has_any(file, {"torch/utils/data/_utils/fetch.py", "torch/utils/data/sampler.py"}))
    return true;
  const std::string_view name = last_name(function);
  const bool asked = name == "__next__" || name == "__iter__" || name == "__getitem__" ||
                     name == "__getitems__" || name == "next";
  const bool of_loader =
      has_any(file, {"/torchdata/", "/webdataset/", "/grain/", "/datasets/arrow_dataset.py",
                     "/datasets/iterable_dataset.py", "tensorflow/python/data/", "/nvidia/dali/",
                     "/streaming/base/", "/ffcv/loader/", "/litdata/"});
  if (of_loader && asked) return true;
  // An iterator of the program, not one that waits for workers or draws a bar.
  return name == "__next__" && owner_of(std::string(file)) == CodeOwner::program;
}

// The part of checkpointing that runs in the backward pass.
bool runs_forward_again(std::string_view file, std::string_view function) {
  const std::string_view name = last_name(function);
  return has_any(file.substr(file.rfind('/') + 1), {"checkpoint"}) &&
         (name == "recompute_fn" || name == "unpack_hook" || name == "backward");
}

// float(x), np.asarray(x), print(x) and the like of an array of JAX's end in one function of it.
bool reads_array(std::string_view file, std::string_view function) {
  const std::string_view name = last_name(function);
  return (file.ends_with("jax/_src/array.py") && name == "_value") ||
         (has_any(file, {"jax/_src/array.py", "jax/_src/api.py"}) && name == "block_until_ready");
}

// PyTorch's own frame between a line that calls a module, or what was compiled, and the code that runs then.
bool calls_model(std::string_view file, std::string_view function) {
  return (file.ends_with("torch/nn/modules/module.py") && last_name(function) == "_call_impl") ||
         (file.ends_with("torch/_dynamo/eval_frame.py") && last_name(function) == "__call__");
}

}  // namespace

StackKinds::StackKinds(const Trace& trace)
    : kinds_(trace.stacks.size()), model_calls_(trace.stacks.size(), kNoStack) {
  std::vector<uint32_t> programs(kinds_.size(),
                                 kNoStack);  // the innermost frame of its code, by node
  for (uint32_t i = 0; i < kinds_.size(); ++i) {
    const StackNode& n = trace.stacks[i];
    const std::string &file = trace.names[n.file], &function = trace.names[n.function];
    uint8_t kind = n.caller == kNoStack ? uint8_t{0} : kinds_[n.caller];
    const bool native = is_native_file(file);
    if (!native) kind &= static_cast<uint8_t>(~kBackward);  // code of Python below: a hook, a layer
    if (makes_code(file, function)) kind |= kCompiles;
    if (fetches(file, function)) kind |= kFetches;
    if (file.ends_with("torch/utils/data/_utils/worker.py")) kind |= kWorker;
    if (last_name(function) == "_engine_run_backward") kind |= kBackward;
    if (has_any(file, {"/torch/optim/"})) kind |= kUpdate;
    if (has_any(file,
                {"torch/_tensor_str.py", "numpy/core/arrayprint.py", "numpy/_core/arrayprint.py"}))
      kind |= kPrints;
    if (runs_forward_again(file, function)) kind |= kRecomputes;
    if (reads_array(file, function)) kind |= kReads;
    kinds_[i] = kind;
    const uint32_t outside = n.caller == kNoStack ? kNoStack : programs[n.caller];
    programs[i] = owner_of(file) == CodeOwner::program ? i : outside;
    if (n.caller != kNoStack) model_calls_[i] = model_calls_[n.caller];
    if (model_calls_[i] == kNoStack && calls_model(file, function)) model_calls_[i] = outside;
  }
}

}  // namespace saturate::observe
