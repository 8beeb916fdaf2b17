// SPDX-License-Identifier: Apache-2.0
#include "observe/trace/code_owner.h"

namespace saturate::observe {
namespace {

bool has(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

}  // namespace

std::string_view path_in_packages(std::string_view file) {
  for (const std::string_view packages : {"/site-packages/", "/dist-packages/"})
    if (const size_t at = file.rfind(packages); at != file.npos)
      return file.substr(at + packages.size());
  return {};
}

bool is_native_file(const std::string& file) {
  return file.starts_with('[') || file.ends_with(".so") || has(file, ".so.");
}

CodeOwner owner_of(const std::string& file) {
  if (const std::string_view in = path_in_packages(file); !in.empty()) {
    for (const std::string_view framework :
         {"torch/", "jax/", "jaxlib/", "cupy/", "lightning/", "pytorch_lightning/", "accelerate/"})
      if (in.starts_with(framework)) return CodeOwner::framework;
    return CodeOwner::library;
  }
  if (has(file, "/lib/python3.") || file.starts_with("<frozen ")) return CodeOwner::python;
  if (is_native_file(file)) return CodeOwner::library;
  // What torch.compile wrote: "/tmp/torchinductor_root/dh/cdh3k.py".
  if (has(file, "/torchinductor_") || file.starts_with("<eval_with_key>"))
    return CodeOwner::framework;
  // A command that a package installed.
  if (has(file, "/bin/") && !file.ends_with(".py")) return CodeOwner::library;
  return CodeOwner::program;
}

}  // namespace saturate::observe
