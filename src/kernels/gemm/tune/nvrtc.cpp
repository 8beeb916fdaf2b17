// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/durable_file.h"
#include "base/log.h"

namespace saturate::kernels {
namespace {

constexpr const char* kMissing =
    "NVRTC (libnvrtc.so.13 or .12) is not found; install it (Debian: cuda-nvrtc-13-0, pip: "
    "nvidia-cuda-nvrtc) and put its folder into LD_LIBRARY_PATH";

// Declared here rather than taken from nvrtc.h, which a machine that builds without CUDA lacks.
using Program = void*;
struct Library {
  int (*version)(int*, int*) = nullptr;
  int (*create)(Program*, const char*, const char*, int, const char* const*,
                const char* const*) = nullptr;
  int (*destroy)(Program*) = nullptr;
  int (*compile)(Program, int, const char* const*) = nullptr;
  int (*add_name)(Program, const char*) = nullptr;
  int (*lowered_name)(Program, const char*, const char**) = nullptr;
  int (*cubin_size)(Program, size_t*) = nullptr;
  int (*cubin)(Program, char*) = nullptr;
  int (*log_size)(Program, size_t*) = nullptr;
  int (*log)(Program, char*) = nullptr;
  const char* (*error_text)(int) = nullptr;
  bool loaded = false;
};

template <class F>
bool take(void* handle, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(handle, name));
  return function != nullptr;
}

Library load() {
  Library l;
  for (const char* name :
       {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"}) {
    void* const h = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (h == nullptr) continue;
    l.loaded = take(h, "nvrtcVersion", l.version) && take(h, "nvrtcCreateProgram", l.create) &&
               take(h, "nvrtcDestroyProgram", l.destroy) &&
               take(h, "nvrtcCompileProgram", l.compile) &&
               take(h, "nvrtcAddNameExpression", l.add_name) &&
               take(h, "nvrtcGetLoweredName", l.lowered_name) &&
               take(h, "nvrtcGetCUBINSize", l.cubin_size) && take(h, "nvrtcGetCUBIN", l.cubin) &&
               take(h, "nvrtcGetProgramLogSize", l.log_size) &&
               take(h, "nvrtcGetProgramLog", l.log) && take(h, "nvrtcGetErrorString", l.error_text);
    if (l.loaded) break;
  }
  return l;
}

// Never unloaded: kernels may be compiled until the process ends.
const Library& library() {
  static const Library instance = load();
  return instance;
}

const Library& require_library() {
  if (!library().loaded) throw Error(Errc::unsupported, "nvrtc", kMissing);
  return library();
}

std::string first_error(const std::string& log) {
  const size_t at = log.find("error");
  const size_t begin = at == std::string::npos ? 0 : log.rfind('\n', at) + 1;
  return log.substr(begin, log.find('\n', begin) - begin);
}

class Compilation {
 public:
  Compilation(const Library& l, const std::string& source, std::span<const NvrtcHeader> headers)
      : l_(l) {
    std::vector<const char*> texts, names;
    for (const NvrtcHeader& h : headers) {
      texts.push_back(h.text);
      names.push_back(h.name);
    }
    check(l_.create(&program_, source.c_str(), "kernel.cu", static_cast<int>(headers.size()),
                    texts.data(), names.data()),
          "nvrtcCreateProgram");
  }
  ~Compilation() { l_.destroy(&program_); }
  Compilation(const Compilation&) = delete;

  NvrtcKernel run(const std::string& arch, const std::string& expression) {
    check(l_.add_name(program_, expression.c_str()), "nvrtcAddNameExpression");
    const std::string target = "--gpu-architecture=" + arch;
    const char* const options[] = {target.c_str(), "--std=c++20", "-DNDEBUG"};
    if (const int code = l_.compile(program_, std::size(options), options); code != 0) {
      throw Error(Errc::invalid_argument, "nvrtc",
                  fmt::format("{} for {}: {} ({})", expression, arch, first_error(log()),
                              l_.error_text(code)));
    }
    NvrtcKernel kernel;
    const char* symbol = nullptr;
    check(l_.lowered_name(program_, expression.c_str(), &symbol), "nvrtcGetLoweredName");
    kernel.symbol = symbol;
    size_t bytes = 0;
    check(l_.cubin_size(program_, &bytes), "nvrtcGetCUBINSize");
    kernel.cubin.resize(bytes);
    check(l_.cubin(program_, kernel.cubin.data()), "nvrtcGetCUBIN");
    return kernel;
  }

 private:
  void check(int code, const char* call) const {
    if (code != 0) {
      throw Error(Errc::device, "nvrtc", fmt::format("{}: {}", call, l_.error_text(code)));
    }
  }
  std::string log() const {
    size_t bytes = 0;
    if (l_.log_size(program_, &bytes) != 0 || bytes == 0) return "no log";
    std::string text(bytes, '\0');
    l_.log(program_, text.data());
    return text;
  }
  const Library& l_;
  Program program_ = nullptr;
};

// 64-bit FNV-1a, twice with different starts: names a file and finds an altered one. No defence
// against intent, which a user's own cache folder does not need.
uint64_t fnv(std::string_view text, uint64_t hash) {
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  }
  return hash;
}
constexpr uint64_t kStart = 0xCBF29CE484222325u, kOther = 0x9E3779B97F4A7C15u;

constexpr std::string_view kMagic = "saturate cubin 1\n";

// magic, symbol, newline, 16 digits over symbol and cubin, newline, cubin.
std::string pack(const NvrtcKernel& k) {
  return fmt::format("{}{}\n{:016x}\n", kMagic, k.symbol, fnv(k.cubin, fnv(k.symbol, kOther))) +
         k.cubin;
}

bool unpack(const std::string& file, NvrtcKernel& k) {
  if (!file.starts_with(kMagic)) return false;
  const size_t name_end = file.find('\n', kMagic.size());
  if (name_end == std::string::npos || file.size() < name_end + 18) return false;
  k.symbol = file.substr(kMagic.size(), name_end - kMagic.size());
  k.cubin = file.substr(name_end + 18);
  return file.substr(name_end + 1, 17) ==
         fmt::format("{:016x}\n", fnv(k.cubin, fnv(k.symbol, kOther)));
}

}  // namespace

Fit nvrtc_fits() noexcept {
  try {
    return library().loaded ? Fit{} : Fit{kMissing};
  } catch (...) {
    return {kMissing};
  }
}

std::string nvrtc_version() {
  int major = 0, minor = 0;
  require_library().version(&major, &minor);
  return fmt::format("{}.{}", major, minor);
}

NvrtcKernel nvrtc_compile(const std::string& source, std::span<const NvrtcHeader> headers,
                          const std::string& arch, const std::string& expression) {
  return Compilation(require_library(), source, headers).run(arch, expression);
}

NvrtcKernel nvrtc_compile_cached(const std::string& folder, const std::string& source,
                                 std::span<const NvrtcHeader> headers, const std::string& arch,
                                 const std::string& expression) {
  if (folder.empty()) return nvrtc_compile(source, headers, arch, expression);
  // Without NVRTC a kernel compiled earlier still serves, whatever version made it.
  std::string all = source + '\0' + arch + '\0' + expression;
  for (const NvrtcHeader& h : headers) all += std::string(1, '\0') + h.name + '\0' + h.text;
  const std::string path =
      fmt::format("{}/{:016x}{:016x}.cubin", folder, fnv(all, kStart), fnv(all, kOther));
  NvrtcKernel kernel;
  std::ifstream in(path, std::ios::binary);
  if (in && unpack({std::istreambuf_iterator<char>(in), {}}, kernel)) return kernel;
  kernel = nvrtc_compile(source, headers, arch, expression);
  try {
    std::filesystem::create_directories(folder);
    // Two processes write the same content; the name of the temporary file keeps them apart.
    const std::string own = fmt::format("{}.{}", path, ::getpid());
    write_durable_file(own, pack(kernel));
    std::filesystem::rename(own, path);
  } catch (const std::exception& e) {
    log_warning(fmt::format("[tune] a compiled kernel is not kept: {}", e.what()));
  }
  return kernel;
}

}  // namespace saturate::kernels
