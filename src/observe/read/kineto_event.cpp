// SPDX-License-Identifier: Apache-2.0
#include "observe/read/kineto_event.h"

#include <charconv>
#include <cstring>

#include "observe/read/decimal.h"

namespace saturate::observe {
namespace {

// Of a known length, so that it takes no call.
template <size_t N>
bool is(std::string_view text, const char (&word)[N]) {
  return text.size() == N - 1 && std::memcmp(text.data(), word, N - 1) == 0;
}

// Passes over the value; 0 for what is no integer.
int64_t integer(JsonTokens& json, JsonToken value) {
  if (value != JsonToken::number && value != JsonToken::string) return json.skip(value), 0;
  int64_t n = 0;
  const std::string_view t = json.text();
  const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), n);
  return error == std::errc{} && end == t.data() + t.size() ? n : 0;
}

int64_t nanoseconds(JsonTokens& json, JsonToken value) {
  int64_t ns = 0;
  if (value != JsonToken::number || !parse_microseconds(json.text(), &ns))
    json.fail("a time in microseconds was expected");
  return ns;
}

// Of the integers of an array, saturating.
int64_t product_of(JsonTokens& json) {
  int64_t product = 1;
  for (JsonToken t = json.next(); t != JsonToken::end_array; t = json.next()) {
    if (t != JsonToken::number) {
      json.skip(t);
      continue;
    }
    int64_t factor = 0;
    const std::string_view text = json.text();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), factor);
    if (error != std::errc{} || end != text.data() + text.size())
      json.fail("an integer was expected");
    product = saturating_product(product, factor);
  }
  return product;
}

void read_arguments(JsonTokens& json, std::string_view bytes, int64_t offset, KinetoEvent& event) {
  while (json.next() == JsonToken::key) {
    bool product = false;
    int64_t* target = kineto_argument(event, json.text(), &product);
    std::string_view* raw = kineto_raw_argument(event, json.text());
    const JsonToken value = json.next();
    const int64_t from = json.offset();
    if (target != nullptr && product && value == JsonToken::begin_array) {
      *target = product_of(json);
    } else if (target != nullptr && !product &&
               (value == JsonToken::number || value == JsonToken::string)) {
      *target = integer(json, value);
    } else {
      json.skip(value);
      if (raw != nullptr)
        *raw = bytes.substr(static_cast<size_t>(from - offset),
                            static_cast<size_t>(json.end_offset() - from));
    }
  }
}

}  // namespace

int64_t saturating_product(int64_t product, int64_t factor) {
  constexpr int64_t kMost = int64_t{1} << 62;
  if (factor <= 0) return 0;
  if ((product | factor) < (int64_t{1} << 31)) return product * factor;
  return product > kMost / factor ? kMost : product * factor;
}

KinetoCategory kineto_category(std::string_view c) {
  if (is(c, "kernel") || is(c, "Kernel")) return KinetoCategory::kernel;
  if (is(c, "gpu_memcpy") || is(c, "Memcpy")) return KinetoCategory::copy;
  if (is(c, "gpu_memset") || is(c, "Memset")) return KinetoCategory::fill;
  if (is(c, "cuda_runtime") || is(c, "cuda_driver") || is(c, "Runtime"))
    return KinetoCategory::call;
  if (is(c, "user_annotation")) return KinetoCategory::annotation;
  if (is(c, "cpu_op") || is(c, "Operator")) return KinetoCategory::operation;
  if (is(c, "overhead")) return KinetoCategory::overhead;
  if (is(c, "cpu_instant_event")) return KinetoCategory::memory;
  return KinetoCategory::none;
}

KinetoField kineto_field(std::string_view key) {
  switch (key.size()) {
    case 2:
      return is(key, "ph") ? KinetoField::ph : is(key, "ts") ? KinetoField::ts : KinetoField::other;
    case 3:
      return is(key, "cat")   ? KinetoField::cat
             : is(key, "dur") ? KinetoField::dur
             : is(key, "pid") ? KinetoField::pid
             : is(key, "tid") ? KinetoField::tid
                              : KinetoField::other;
    case 4:
      return is(key, "name")   ? KinetoField::name
             : is(key, "args") ? KinetoField::args
                               : KinetoField::other;
    default:
      return KinetoField::other;
  }
}

int64_t* kineto_argument(KinetoEvent& event, std::string_view key, bool* product) {
  switch (key.size()) {
    case 4:
      if (is(key, "grid")) return *product = true, &event.blocks;
      break;
    case 5:
      if (is(key, "bytes")) return &event.bytes;
      if (is(key, "block")) return *product = true, &event.block_threads;
      break;
    case 6:
      if (is(key, "device")) return &event.device;
      if (is(key, "stream")) return &event.stream;
      break;
    case 7:
      if (is(key, "context")) return &event.context;
      break;
    case 9:
      if (is(key, "Device Id")) return &event.device_id;
      break;
    case 11:
      if (is(key, "correlation")) return &event.correlation;
      if (is(key, "External id") || is(key, "external id")) return &event.external_id;
      if (is(key, "Device Type")) return &event.device_type;
      break;
    case 13:
      if (is(key, "In msg nelems")) return &event.elements_in;
      break;
    case 14:
      if (is(key, "Total Reserved")) return &event.reserved;
      if (is(key, "Out msg nelems")) return &event.elements_out;
      break;
    case 15:
      if (is(key, "Total Allocated")) return &event.allocated;
      break;
    default:
      break;
  }
  return nullptr;
}

std::string_view* kineto_raw_argument(KinetoEvent& event, std::string_view key) {
  if (is(key, "Input Dims")) return &event.dims;
  if (is(key, "Input type")) return &event.types;
  if (is(key, "Concrete Inputs")) return &event.values;
  if (is(key, "Process Group Name")) return &event.group;
  if (is(key, "Process Group Ranks")) return &event.group_ranks;
  if (is(key, "Collective name")) return &event.collective;
  if (is(key, "dtype")) return &event.element;
  return nullptr;
}

void read_event_carefully(JsonTokens& json, std::string_view bytes, int64_t offset,
                          KinetoEvent& event) {
  event.clear();
  if (json.next() != JsonToken::begin_object) json.fail("an event is no object");
  while (json.next() == JsonToken::key) {
    const KinetoField field = kineto_field(json.text());
    const JsonToken value = json.next();
    const bool text = value == JsonToken::string || value == JsonToken::number;
    switch (field) {
      case KinetoField::ph:
        event.complete = value == JsonToken::string && json.text() == "X";
        event.instant = value == JsonToken::string && json.text() == "i";
        break;
      case KinetoField::cat:
        if (value == JsonToken::string) event.category = kineto_category(json.text());
        break;
      case KinetoField::name:
        if (value == JsonToken::string) event.name = event.own_name = json.text();
        break;
      case KinetoField::ts:
        event.start_ns = nanoseconds(json, value);
        event.has_start = true;
        break;
      case KinetoField::dur:
        event.duration_ns = nanoseconds(json, value);
        break;
      case KinetoField::pid:
        event.pid = text ? integer(json, value) : 0;
        break;
      case KinetoField::tid:
        if (text) event.tid = event.own_tid = json.text();
        break;
      case KinetoField::args:
        if (value == JsonToken::begin_object) {
          read_arguments(json, bytes, offset, event);
          continue;
        }
        break;
      case KinetoField::other:
        break;
    }
    json.skip(value);
  }
}

}  // namespace saturate::observe
