// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/other_profiler.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <utility>

#include "observe/capture/import_table.h"

namespace saturate::observe::cupti {
namespace {

using Register = Result (*)(BufferRequested, BufferCompleted);
constexpr const char* kSymbol = "cuptiActivityRegisterCallbacks";
constexpr size_t kMostImports = 8;  // libraries that import it

void (*notify)() = nullptr;
std::array<Register, kMostImports> originals{};
size_t imports = 0;
Register exported = nullptr;  // libcupti's own

// One for each library, since each may be bound to another copy of libcupti.
template <size_t I>
Result registering(BufferRequested requested, BufferCompleted completed) {
  if (notify != nullptr) notify();
  return originals[I](requested, completed);
}
template <size_t... I>
constexpr std::array<Register, kMostImports> make_wrappers(std::index_sequence<I...>) {
  return {registering<I>...};
}
constexpr auto kWrappers = make_wrappers(std::make_index_sequence<kMostImports>());

Result registering_exported(BufferRequested requested, BufferCompleted completed) {
  if (notify != nullptr) notify();
  return exported(requested, completed);
}

void* wrapper_instead_of(void* now) {
  const auto bound = reinterpret_cast<Register>(now);
  for (const Register w : kWrappers) {
    if (bound == w) return now;
  }
  if (bound == &registering_exported || imports == kMostImports) return now;
  originals[imports] = bound;
  return reinterpret_cast<void*>(kWrappers[imports++]);
}

unsigned long long seen_loaded = 0;

}  // namespace

void watch_other_profilers(const Api& api, void (*before_register)()) {
  if (!knows_imports()) return;
  notify = before_register;
  // libcupti's own table, for what binds later or searches for the name itself.
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  if (exported == nullptr &&
      dladdr1(reinterpret_cast<const void*>(api.register_callbacks), &info,
              reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT) != 0 &&
      symbol != nullptr) {
    auto* entry = const_cast<ElfW(Sym)*>(symbol);
    const auto base = reinterpret_cast<ElfW(Addr)>(info.dli_fbase);
    if (base + entry->st_value == reinterpret_cast<ElfW(Addr)>(api.register_callbacks) &&
        make_writable(entry, sizeof *entry)) {
      exported = api.register_callbacks;
      entry->st_value = reinterpret_cast<ElfW(Addr)>(&registering_exported) - base;
      make_read_only(entry, sizeof *entry);
    }
  }
  const Redirection redirection{kSymbol, wrapper_instead_of};
  redirect_imports(&redirection, 1, seen_loaded);
}

}  // namespace saturate::observe::cupti
