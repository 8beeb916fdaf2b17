// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/other_profiler.h"

#include <dlfcn.h>
#include <link.h>

#include <array>
#include <cstddef>
#include <utility>

#include "observe/capture/import_table.h"

namespace saturate::observe::cupti {
namespace {

// All that matter take up to four pointers: in registers, so that one type serves them.
using Entry = Result (*)(void*, void*, void*, void*);
enum Function : size_t { kRegister, kSubscribe, kSubscribeV2, kFunctions };
constexpr std::array<const char*, kFunctions> kSymbols = {"cuptiActivityRegisterCallbacks",
                                                          "cuptiSubscribe", "cuptiSubscribe_v2"};
constexpr size_t kMostImports = 8;  // libraries that import it

OtherProfilers notify{};
bool several = false, shared = false;  // CUPTI can have several clients; we are one of them
std::array<std::array<Entry, kMostImports>, kFunctions> originals{};
std::array<size_t, kFunctions> imports{};
std::array<Entry, kFunctions> exported{};  // libcupti's own

bool stands_others(const void* params) {
  const auto* p = static_cast<const SubscriberParams*>(params);
  return p != nullptr && p->struct_size > offsetof(SubscriberParams, allow_several) &&
         p->allow_several == 1;
}

void before(Function function, const void* params) {
  switch (function) {
    case kRegister:
      return notify.take_over();
    case kSubscribe:
      return shared ? notify.take_over() : notify.subscribe();
    default:
      if (shared && stands_others(params)) return notify.join();
      if (several) notify.take_over();
  }
}

// One for each library, since each may be bound to another copy of libcupti.
template <Function F, size_t I>
Result calling(void* a, void* b, void* c, void* d) {
  before(F, d);
  return originals[F][I](a, b, c, d);
}
template <Function F>
Result calling_exported(void* a, void* b, void* c, void* d) {
  before(F, d);
  return exported[F](a, b, c, d);
}
template <Function F, size_t... I>
constexpr std::array<Entry, kMostImports> make_wrappers(std::index_sequence<I...>) {
  return {calling<F, I>...};
}
template <Function F>
constexpr auto kWrappers = make_wrappers<F>(std::make_index_sequence<kMostImports>());

template <Function F>
void* wrapper_instead_of(void* now) {
  const auto bound = reinterpret_cast<Entry>(now);
  for (const Entry w : kWrappers<F>) {
    if (bound == w) return now;
  }
  if (bound == &calling_exported<F> || imports[F] == kMostImports) return now;
  originals[F][imports[F]] = bound;
  return reinterpret_cast<void*>(kWrappers<F>[imports[F]++]);
}

// libcupti's own table, for what binds later or searches for the name itself.
template <Function F>
void change_export(void* function) {
  const auto entry = reinterpret_cast<Entry>(function);
  Dl_info info{};
  const ElfW(Sym)* symbol = nullptr;
  if (entry == nullptr || exported[F] != nullptr ||
      dladdr1(reinterpret_cast<const void*>(entry), &info,
              reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&symbol)), RTLD_DL_SYMENT) == 0 ||
      symbol == nullptr)
    return;
  auto* writable = const_cast<ElfW(Sym)*>(symbol);
  const auto base = reinterpret_cast<ElfW(Addr)>(info.dli_fbase);
  if (base + writable->st_value != reinterpret_cast<ElfW(Addr)>(entry) ||
      !make_writable(writable, sizeof *writable))
    return;
  exported[F] = entry;
  writable->st_value = reinterpret_cast<ElfW(Addr)>(&calling_exported<F>) - base;
  make_read_only(writable, sizeof *writable);
}

SeenLibraries seen;

}  // namespace

void watch_other_profilers(const Api& api, uint32_t version, const OtherProfilers& others) {
  if (!knows_imports()) return;
  notify = others;
  several = version >= kSeveralClients;
  shared = api.unsubscribe != nullptr;
  change_export<kRegister>(
      reinterpret_cast<void*>(shared ? api.register_callbacks_v1 : api.register_callbacks));
  change_export<kSubscribe>(reinterpret_cast<void*>(api.subscribe));
  if (several) change_export<kSubscribeV2>(reinterpret_cast<void*>(api.subscribe_v2));
  const Redirection redirections[] = {{kSymbols[kRegister], wrapper_instead_of<kRegister>},
                                      {kSymbols[kSubscribe], wrapper_instead_of<kSubscribe>},
                                      {kSymbols[kSubscribeV2], wrapper_instead_of<kSubscribeV2>}};
  redirect_imports(redirections, std::size(redirections) - (several ? 0 : 1), seen);
}

}  // namespace saturate::observe::cupti
