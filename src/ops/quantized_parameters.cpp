// SPDX-License-Identifier: Apache-2.0
// Weights that training leaves alone, held in fewer bytes than their masters take.
#include <vector>

#include "base/error.h"
#include "base/half.h"
#include "kernels/nf4/nf4.h"
#include "ops/parameters.h"

namespace saturate {
namespace {

// f(first element, elements, first byte) of each matrix that lies in a parameter, so that codes and
// scales are those that each would have alone, as in files of models.
template <class F>
void each_tensor(const ParameterSpec& p, const F& f) {
  int64_t element = 0, byte = 0;
  const auto take = [&](int64_t rows) {
    f(element, rows * p.cols, byte);
    element += rows * p.cols;
    byte += kernels::Nf4Layout(rows * p.cols).bytes();
  };
  for (const int64_t rows : p.blocks) take(rows);
  if (p.blocks.empty()) take(p.rows);
  SAT_ASSERT(element == p.size());
}

}  // namespace

int64_t nf4_bytes(const ParameterSpec& p) noexcept {
  int64_t bytes = 0;
  each_tensor(p,
              [&](int64_t, int64_t count, int64_t) { bytes += kernels::Nf4Layout(count).bytes(); });
  return bytes;
}

void ParameterStore::quantize_frozen() {
  SAT_ASSERT(!allocated() && layout_ == nullptr);
  const bool copies = compute_type_ != wide_type();
  for (ParameterSpec& p : specs_) {
    if (!p.frozen) continue;
    SAT_ASSERT(p.whole.rows == 0);
    if (p.multiplied) {
      p.storage = Storage::nf4;
    } else if (!p.wide && copies) {
      p.storage = Storage::compute;
    }
  }
  begin_groups();
  for (ParameterSpec& p : specs_) place(p);
}

void* ParameterStore::held(ParameterId id) const noexcept {
  const bool rounded = spec(id).storage == Storage::compute;
  return at(rounded ? StateArray::compute : StateArray::master, id);
}

size_t ParameterStore::held_bytes(ParameterId id) const noexcept {
  const ParameterSpec& p = spec(id);
  if (p.storage == Storage::nf4) return static_cast<size_t>(nf4_bytes(p));
  const DType type = p.storage == Storage::compute ? compute_type_ : wide_type();
  return static_cast<size_t>(p.size()) * size_of(type);
}

void ParameterStore::set_held(const Stream& stream, ParameterId id, const float* values) {
  const ParameterSpec& p = spec(id);
  std::vector<char> bytes(held_bytes(id));
  if (p.storage == Storage::nf4) {
    each_tensor(p, [&](int64_t element, int64_t count, int64_t byte) {
      kernels::nf4_quantize(values + element, count, bytes.data() + byte);
    });
  } else {
    auto* const to = reinterpret_cast<uint16_t*>(bytes.data());
    for (int64_t i = 0; i < p.size(); ++i)
      to[i] = compute_type_ == DType::bf16 ? to_bf16(values[i]).bits : to_f16(values[i]).bits;
  }
  copy_to_device(stream, held(id), bytes.data(), bytes.size());
  stream.synchronize();
}

void ParameterStore::get_held(const Stream& stream, ParameterId id, std::span<float> out) const {
  const ParameterSpec& p = spec(id);
  std::vector<char> bytes(held_bytes(id));
  copy_to_host(stream, bytes.data(), held(id), bytes.size());
  stream.synchronize();
  if (p.storage == Storage::nf4) {
    each_tensor(p, [&](int64_t element, int64_t count, int64_t byte) {
      kernels::nf4_dequantize({}, {.held = bytes.data() + byte,
                                   .w = out.data() + element,
                                   .count = count,
                                   .dtype = DType::f32});
    });
    return;
  }
  const auto* const from = reinterpret_cast<const uint16_t*>(bytes.data());
  for (int64_t i = 0; i < p.size(); ++i)
    out[static_cast<size_t>(i)] =
        compute_type_ == DType::bf16 ? to_float(Bf16{from[i]}) : to_float(F16{from[i]});
}

void ParameterStore::dequantize(const Context& ctx, ParameterId id, void* to) const {
  const char* const codes = static_cast<const char*>(held(id));
  each_tensor(spec(id), [&](int64_t element, int64_t count, int64_t byte) {
    kernels::nf4_dequantize(
        ctx, {.held = codes + byte,
              .w = static_cast<char*>(to) + static_cast<size_t>(element) * size_of(compute_type_),
              .count = count,
              .dtype = compute_type_});
  });
}

}  // namespace saturate
