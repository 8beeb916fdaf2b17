// SPDX-License-Identifier: Apache-2.0
#include "observe/capture/several_clients.h"

#include <dlfcn.h>

#include <cstdio>
#include <type_traits>

#include "observe/capture/import_table.h"

namespace saturate::observe::cupti {
namespace {

constexpr int kLeastDriver = 610;

// Of the newer interface.
using Subscriber = void*;
using BufferRequestedV2 = void (*)(uint8_t**, size_t*, size_t*, void*);
using BufferCompletedV2 = void (*)(uint8_t*, size_t, size_t, void*);
Result (*unsubscribe_v2)(Subscriber) = nullptr;
Result (*register_v2)(Subscriber, BufferRequestedV2, BufferCompletedV2) = nullptr;
Result (*enable_v2)(Subscriber, uint32_t kind, void* config) = nullptr;
Result (*disable_v2)(Subscriber, uint32_t kind, void* config) = nullptr;
Result (*next_record_v2)(Subscriber, uint8_t*, size_t, Activity**) = nullptr;
Result (*dropped_records_v2)(Subscriber, void*, uint32_t, size_t*) = nullptr;
Result (*set_attribute_v2)(Subscriber, uint32_t, size_t*, void*) = nullptr;
Result (*enable_runtime_v2)(Subscriber, uint32_t, uint8_t) = nullptr;
Result (*enable_driver_v2)(Subscriber, uint32_t, uint8_t) = nullptr;

Subscriber subscriber = nullptr;
BufferRequested requested = nullptr;
BufferCompleted completed = nullptr;

Result register_callbacks(BufferRequested on_request, BufferCompleted on_completed) {
  requested = on_request;
  completed = on_completed;
  return register_v2(
      subscriber,
      [](uint8_t** buffer, size_t* size, size_t* most, void*) { requested(buffer, size, most); },
      [](uint8_t* buffer, size_t size, size_t valid, void*) {
        completed(nullptr, 0, buffer, size, valid);
      });
}
Result enable(uint32_t kind) { return enable_v2(subscriber, kind, nullptr); }
Result disable(uint32_t kind) { return disable_v2(subscriber, kind, nullptr); }
Result next_record(uint8_t* buffer, size_t valid, Activity** record) {
  return next_record_v2(subscriber, buffer, valid, record);
}
Result dropped_records(void* context, uint32_t stream, size_t* dropped) {
  return dropped_records_v2(subscriber, context, stream, dropped);
}
Result set_thread_id_type(uint32_t type) {
  size_t size = sizeof type;
  return set_attribute_v2(subscriber, kThreadIdAttribute, &size, &type);
}
Result enable_runtime_api(uint32_t call, uint8_t on) {
  return enable_runtime_v2(subscriber, call, on);
}
Result enable_driver_api(uint32_t call, uint8_t on) {
  return enable_driver_v2(subscriber, call, on);
}
void unsubscribe() { unsubscribe_v2(subscriber); }

bool known_to_a_library = false;
void* note_import(void* now) {
  known_to_a_library = true;
  return now;
}

// Its major number, 0 where the system does not say.
int driver() {
  int major = 0;
  if (std::FILE* file = std::fopen("/proc/driver/nvidia/version", "r")) {
    char line[256] = {};
    if (std::fgets(line, sizeof line, file) != nullptr) {
      const std::string_view text = line;
      for (size_t at = text.find("  "); at < text.size() && major == 0;
           at = text.find("  ", at + 1))
        std::sscanf(line + at, " %d.", &major);
    }
    std::fclose(file);
  }
  return major;
}

}  // namespace

bool join_several_clients(Api& api, uint32_t version, Callback on_callback, std::string& why_not) {
  why_not.clear();
  if (version < kSeveralClients) return false;
  const Redirection imports[] = {{"cuptiSubscribe_v2", note_import},
                                 {"cuptiActivityRegisterCallbacks_v2", note_import}};
  SeenLibraries seen;
  redirect_imports(imports, std::size(imports), seen);
  if (!known_to_a_library) {
    why_not = "no library of the program uses the interface for that";
    return false;
  }
  if (const int major = driver(); major != 0 && major < kLeastDriver) {
    why_not =
        "not with driver " + std::to_string(major) + ": that needs " + std::to_string(kLeastDriver);
    return false;
  }
  bool all = api.subscribe_v2 != nullptr;
  const auto find = [&](auto& entry, const char* name) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(api.handle, name));
    all = all && entry != nullptr;
  };
  find(unsubscribe_v2, "cuptiUnsubscribe");
  find(register_v2, "cuptiActivityRegisterCallbacks_v2");
  find(enable_v2, "cuptiActivityEnable_v2");
  find(disable_v2, "cuptiActivityDisable_v2");
  find(next_record_v2, "cuptiActivityGetNextRecord_v2");
  find(dropped_records_v2, "cuptiActivityGetNumDroppedRecords_v2");
  find(set_attribute_v2, "cuptiActivitySetAttribute_v2");
  find(enable_runtime_v2, "cuptiActivityEnableRuntimeApi_v2");
  find(enable_driver_v2, "cuptiActivityEnableDriverApi_v2");
  SubscriberParams params{sizeof params, "saturate doctor", nullptr, 0, 1, {}};
  if (!all || api.subscribe_v2(&subscriber, on_callback, nullptr, &params) != kSuccess) {
    why_not = all ? "it refused" : "it lacks the entry points";
    return false;
  }
  api.register_callbacks_v1 = api.register_callbacks;
  api.register_callbacks = register_callbacks;
  api.enable = enable;
  api.disable = disable;
  api.next_record = next_record;
  api.dropped_records = dropped_records;
  api.set_thread_id_type = set_thread_id_type;
  api.enable_runtime_api = enable_runtime_api;
  api.enable_driver_api = enable_driver_api;
  api.unsubscribe = unsubscribe;
  api.subscriber = subscriber;
  return true;
}

}  // namespace saturate::observe::cupti
