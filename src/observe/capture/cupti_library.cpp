// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/cupti_library.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <string_view>
#include <vector>

namespace saturate::observe::cupti {
namespace {

constexpr std::array kNames = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
constexpr std::array kToolkits = {"/usr/local/cuda/lib64", "/usr/local/cuda/extras/CUPTI/lib64",
                                  "/opt/cuda/extras/CUPTI/lib64"};

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        if (info->dlpi_name != nullptr && info->dlpi_name[0] != '\0')
          static_cast<std::vector<std::string>*>(out)->emplace_back(info->dlpi_name);
        return 0;
      },
      &paths);
  return paths;
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash);
}

// NVIDIA's Python packages lie beside each other: site-packages/nvidia/<part>/lib, all parts in one
// folder from CUDA 13 on; PyTorch itself is site-packages/torch/lib.
std::vector<std::string> python_folders(const std::vector<std::string>& loaded) {
  std::vector<std::string> folders;
  for (const std::string& path : loaded) {
    const size_t nvidia = path.find("/nvidia/");
    const size_t torch = path.find("/torch/lib/");
    std::string site;
    if (nvidia != std::string::npos) {
      site = path.substr(0, nvidia);
      folders.push_back(folder_of(path));
    } else if (torch != std::string::npos) {
      site = path.substr(0, torch);
    }
    if (site.empty()) continue;
    for (const char* part : {"/nvidia/cu13/lib", "/nvidia/cuda_cupti/lib"}) {
      const std::string folder = site + part;
      bool known = false;
      for (const std::string& f : folders) known = known || f == folder;
      if (!known) folders.push_back(folder);
    }
  }
  return folders;
}

// Beside this library: a libcupti that was laid there for programs whose own is too old.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load), &info) == 0 || info.dli_fname == nullptr)
    return "";
  return folder_of(info.dli_fname);
}

uint32_t version_of(void* handle) {
  uint32_t version = 0;
  const auto get = reinterpret_cast<Result (*)(uint32_t*)>(dlsym(handle, "cuptiGetVersion"));
  return get != nullptr && get(&version) == kSuccess ? version : 0;
}

// The first of `least` or later that lies beside this library, in NVIDIA's Python packages or in a
// toolkit's folder; null where there is none.
void* open_newer(uint32_t least, const std::vector<std::string>& loaded) {
  std::vector<std::string> folders = python_folders(loaded);
  const std::string own = own_folder();
  if (!own.empty()) folders.insert(folders.begin(), own);
  for (const char* folder : kToolkits) folders.emplace_back(folder);
  for (const std::string& folder : folders) {
    for (const char* name : kNames) {
      void* handle = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL);
      if (handle == nullptr) continue;
      // While CUDA starts a copy may not tell its version; who laid one here chose it for this.
      const uint32_t version = version_of(handle);
      if (version >= least || (version == 0 && folder == own)) return handle;
      dlclose(handle);
    }
  }
  return nullptr;
}

void* open_any(const std::string& path, std::string& problem) {
  if (!path.empty()) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) problem = dlerror();
    return handle;
  }
  const std::vector<std::string> loaded = loaded_libraries();
  for (const std::string& library : loaded) {
    if (library.find("/libcupti.so") == std::string::npos) continue;
    if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD)) return handle;
  }
  for (const std::string& folder : python_folders(loaded)) {
    for (const char* name : kNames) {
      if (void* handle = dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL))
        return handle;
    }
  }
  for (const char* name : kNames)
    if (void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return handle;
  for (const char* folder : kToolkits) {
    for (const char* name : kNames) {
      if (void* handle = dlopen((std::string(folder) + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL))
        return handle;
    }
  }
  problem =
      "no libcupti was found in the process, beside its CUDA libraries or in /usr/local/cuda; "
      "install it (pip install nvidia-cuda-cupti, or the CUDA toolkit) or name it with --cupti";
  return nullptr;
}

}  // namespace

bool load(const std::string& path, uint32_t wanted, Api& api, std::string& problem) {
  api = {};
  api.handle = open_any(path, problem);
  if (path.empty() && wanted > 0 && (api.handle == nullptr || version_of(api.handle) < wanted)) {
    if (void* newer = open_newer(wanted, loaded_libraries())) api.handle = newer;
  }
  if (api.handle == nullptr) return false;
  const char* missing = nullptr;
  const auto find = [&](auto& entry, const char* name, bool needed) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(api.handle, name));
    if (entry == nullptr && needed && missing == nullptr) missing = name;
  };
  find(api.register_callbacks, "cuptiActivityRegisterCallbacks", true);
  find(api.enable, "cuptiActivityEnable", true);
  find(api.disable, "cuptiActivityDisable", true);
  find(api.flush_all, "cuptiActivityFlushAll", true);
  find(api.next_record, "cuptiActivityGetNextRecord", true);
  find(api.dropped_records, "cuptiActivityGetNumDroppedRecords", true);
  find(api.callback_name, "cuptiGetCallbackName", true);
  find(api.set_thread_id_type, "cuptiSetThreadIdType", false);
  find(api.enable_runtime_api, "cuptiActivityEnableRuntimeApi", false);
  find(api.enable_driver_api, "cuptiActivityEnableDriverApi", false);
  find(api.set_attribute, "cuptiActivitySetAttribute", false);
  find(api.version, "cuptiGetVersion", false);
  find(api.subscribe, "cuptiSubscribe", false);
  find(api.unsubscribe_v1, "cuptiUnsubscribe", false);
  find(api.enable_callback, "cuptiEnableCallback", false);
  find(api.subscribe_v2, "cuptiSubscribe_v2", false);
  if (missing == nullptr) return true;
  problem = std::string("libcupti lacks ") + missing + "; use one of CUDA 11.6 or later";
  return false;
}

}  // namespace saturate::observe::cupti
