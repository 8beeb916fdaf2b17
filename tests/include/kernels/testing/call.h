// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <deque>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "kernels/testing/guarded.h"
#include "kernels/testing/targets.h"

namespace saturate::testing {

// The arrays of one call, in the memory of the target's device. Numbers come from a counter, so that every call of an
// entry gets the same ones.
class Call {
 public:
  explicit Call(Target target)
      : dtype(target.dtype),
        wide(wide_of(dtype)),
        context_(Device{target.kind, 0}),
        rng_(context_.stream, kDropout) {}

  static constexpr float kDropout = 0.25f;
  const DType dtype, wide;
  Context ctx() const { return context_.get(); }
  Device device() const { return context_.stream.device(); }
  RngRef rng() const { return rng_.ref(); }

  const void* in(int64_t count) { return in(dtype, random(count, dtype)); }
  const void* wide_in(int64_t count) { return in(wide, random(count, wide)); }
  const void* in(DType type, const Values& values) {
    return add("input", Use::input, type, values).data();
  }
  const int32_t* ints(const Values& values) {
    return static_cast<const int32_t*>(in(DType::i32, values));
  }
  void* out(int64_t count) { return out(dtype, count); }
  void* wide_out(int64_t count) { return out(wide, count); }
  void* out(DType type, int64_t count) {
    return add("result", Use::result, type, Values(static_cast<size_t>(count), NAN)).data();
  }
  void* changed(DType type, const Values& values) {
    return add("array that changes", Use::changed, type, values).data();
  }
  int32_t* changed_ints(const Values& values) {
    return static_cast<int32_t*>(changed(DType::i32, values));
  }
  void* changed(DType type, int64_t count) { return changed(type, random(count, type)); }
  // Bytes whose values nobody reads afterwards.
  void* scratch(int64_t bytes) {
    return add("scratch", Use::scratch, DType::f32, Values(static_cast<size_t>(bytes + 3) / 4, NAN))
        .data();
  }
  template <class T>
  const T* in_object(const T& value) {
    return object("input", Use::input, value);
  }
  template <class T>
  T* changed_object(const T& value) {
    return object("object that changes", Use::changed, value);
  }
  template <class T>
  T* host_object() {
    host_.emplace_back(device(), sizeof(T));
    return new (host_.back().data()) T{};
  }

  // All that the call may have changed; fails the test where it changed what it may not.
  std::vector<std::vector<char>> results() {
    context_.stream.synchronize();
    std::vector<std::vector<char>> all;
    int number = 0;
    for (const Array& a : arrays_) {
      SCOPED_TRACE(std::string(a.what) + " " + std::to_string(number++));
      std::vector<char> bytes = a.guarded.bytes();
      if (a.use == Use::input) {
        EXPECT_TRUE(bytes == a.before) << "an input was written";
      }
      if (a.use == Use::result) {
        const Values values = a.guarded.values();
        for (size_t i = 0; i < values.size(); ++i)
          if (std::isnan(values[i])) {
            ADD_FAILURE() << "element " << i << " of " << values.size() << " was not written";
            break;
          }
      }
      if (a.use == Use::result || a.use == Use::changed) all.push_back(std::move(bytes));
    }
    for (const HostBuffer& h : host_) all.emplace_back(h.as<char>(), h.as<char>() + h.bytes());
    return all;
  }

 private:
  enum class Use { input, result, changed, scratch };
  struct Array {
    const char* what;
    Use use;
    Guarded guarded;
    std::vector<char> before;
    void* data() const { return guarded.data(); }
  };
  Array& add(const char* what, Use use, DType type, const Values& values) {
    arrays_.push_back({what, use, Guarded(context_.stream, type, values), {}});
    if (use == Use::input) arrays_.back().before = arrays_.back().guarded.bytes();
    return arrays_.back();
  }
  template <class T>
  T* object(const char* what, Use use, const T& value) {
    static_assert(sizeof(T) % 4 == 0);
    Array& a = add(what, use, DType::i32, Values(sizeof(T) / 4));
    copy_to_device(context_.stream, a.data(), &value, sizeof(T));
    a.before = a.guarded.bytes();
    return static_cast<T*>(a.data());
  }
  Values random(int64_t count, DType type) { return random_values(count, type, ++seed_, 0.5); }

  TestContext context_;
  TestRng rng_;
  std::deque<Array> arrays_;
  std::deque<HostBuffer> host_;
  uint64_t seed_ = 0;
};

}  // namespace saturate::testing
