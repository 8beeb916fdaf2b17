// SPDX-License-Identifier: Apache-2.0
#include "ops/parameters.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/elementwise/elementwise.h"

namespace saturate {
namespace {

constexpr uint32_t kInitOp = 0xFFFFFF;  // no recorded operation reaches this number

// Box-Muller on two 32-bit uniforms; the half keeps the logarithm finite.
double normal_of(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(b) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
}

float draw(const ParameterSpec& p, uint64_t seed, uint64_t parameter, int64_t element) {
  switch (p.init) {
    case Init::zeros:
      return 0.0f;
    case Init::ones:
      return 1.0f;
    case Init::normal:
    case Init::uniform: {
      const Random4 r = random_block(seed, parameter, kInitOp, static_cast<uint64_t>(element));
      const double unit = p.init == Init::normal ? normal_of(r.x[0], r.x[1])
                                                 : static_cast<double>(r.x[0]) * 0x1p-31 - 1.0;
      return static_cast<float>(unit * p.init_scale);
    }
  }
  return 0.0f;
}

}  // namespace

ParameterSpec part_of(ParameterSpec whole, const parallel::Mesh& mesh, int rank) {
  SAT_ASSERT(whole.number >= 0 && whole.whole.rows == 0);
  const std::vector<int64_t> shape{whole.rows, whole.cols};
  for (parallel::ShardSpec::Cut& cut : whole.shard.cuts) {
    const bool of_outputs = cut.dimension == (whole.rows == 1 ? 1 : 0);
    if (cut.blocks.empty() && of_outputs) cut.blocks = whole.blocks;
  }
  whole.shard.check(shape, mesh);
  ParameterSpec part = whole;
  part.whole = {whole.rows, whole.cols, whole.shard.local_runs(shape, mesh, rank)};
  const std::vector<int64_t> local = whole.shard.local_shape(shape, mesh);
  part.rows = local[0];
  part.cols = local[1];
  return part;
}

ParameterStore::ParameterStore(Device device, DType compute)
    : device_(device), compute_type_(compute) {
  begin_groups();
}

void ParameterStore::begin_groups() {
  groups_.clear();
  for (const auto kind : {ParameterGroup::Kind::trained, ParameterGroup::Kind::frozen})
    groups_.emplace_back(kind, compute_type_, parallel::ShardSpec{}.reduce_axes());
}

void ParameterStore::place(ParameterSpec& spec) {
  using Kind = ParameterGroup::Kind;
  const Kind kind = spec.frozen ? Kind::frozen : Kind::trained;
  const ParameterGroup::Axes axes = spec.shard.reduce_axes();
  const auto found = std::ranges::find_if(
      groups_, [&](const ParameterGroup& g) { return g.kind() == kind && g.axes() == axes; });
  spec.group = static_cast<int32_t>(found - groups_.begin());
  if (found == groups_.end()) groups_.emplace_back(kind, compute_type_, axes);
  spec.offset = groups_[static_cast<size_t>(spec.group)].add(spec.size());
}

ParameterId ParameterStore::add(ParameterSpec spec) {
  SAT_ASSERT(!allocated() && spec.rows > 0 && spec.cols > 0);
  SAT_ASSERT(find(spec.name).index < 0);
  place(spec);
  specs_.push_back(std::move(spec));
  return {static_cast<int32_t>(specs_.size() - 1)};
}

void ParameterStore::freeze(ParameterId id) {
  SAT_ASSERT(!allocated());
  specs_[static_cast<size_t>(id.index)].frozen = true;
  begin_groups();
  for (ParameterSpec& p : specs_) place(p);
}

void ParameterStore::allocate(Purpose purpose) {
  purpose_ = purpose;
  const Stream stream(device_);
  for (ParameterGroup& group : groups_) group.allocate(stream, purpose);
  stream.synchronize();
}

size_t ParameterStore::bytes(StateArray a, Purpose purpose) const noexcept {
  size_t sum = 0;
  for (const ParameterGroup& group : groups_) sum += group.bytes(a, purpose);
  return sum;
}

void* ParameterStore::at(StateArray a, ParameterId id) const noexcept {
  const ParameterSpec& p = spec(id);
  if (p.frozen && a == StateArray::average && shipped() == a) a = StateArray::master;
  return group_of(p).at(a, p.offset);
}

void ParameterStore::initialise(const Stream& stream, uint64_t seed) {
  std::vector<float> values;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& p = specs_[i];
    const auto number = p.number < 0 ? i : static_cast<uint64_t>(p.number);
    const bool cut = p.whole.rows > 0;
    const std::vector<parallel::ShardRun> all{{0, p.size()}};
    const int64_t width = cut ? p.whole.cols : p.cols;
    values.clear();
    for (const parallel::ShardRun& run : cut ? p.whole.runs : all) {
      for (int64_t e = run.global_offset; e < run.global_offset + run.length; ++e)
        values.push_back(e / width == p.zero_row ? 0.0f : draw(p, seed, number, e));
    }
    SAT_ASSERT(std::ssize(values) == p.size());
    set(stream, {static_cast<int32_t>(i)}, values.data());
  }
  refresh_compute(stream);
}

void ParameterStore::set(const Stream& stream, ParameterId id, const float* values) {
  const auto n = static_cast<size_t>(spec(id).size());
  if (wide_type() == DType::f64) {
    std::copy_n(values, n, static_cast<double*>(master(id)));
    return;
  }
  copy_to_device(stream, master(id), values, n * sizeof(float));
  stream.synchronize();
}

void ParameterStore::get(const Stream& stream, ParameterId id, std::span<float> out,
                         StateArray array) const {
  SAT_ASSERT(std::ssize(out) == spec(id).size());
  const void* from = at(array, id);
  if (wide_type() == DType::f64) {
    const double* src = static_cast<const double*>(from);
    std::transform(src, src + out.size(), out.begin(),
                   [](double v) { return static_cast<float>(v); });
    return;
  }
  copy_to_host(stream, out.data(), from, out.size_bytes());
  stream.synchronize();
}

void ParameterStore::set_all(const Stream& stream, std::span<const float> values) {
  SAT_ASSERT(std::ssize(values) == padded_count() && trainable_count() == count() &&
             groups_.size() == 2);
  if (wide_type() == DType::f64) {
    std::copy(values.begin(), values.end(), masters().as<double>());
    return;
  }
  copy_to_device(stream, masters().data(), values.data(), values.size_bytes());
  stream.synchronize();
}

void ParameterStore::copy_shipped(const Stream& stream, const ParameterStore& from) {
  SAT_ASSERT(specs_.size() == from.specs_.size() && wide_type() == from.wide_type());
  const StateArray shipped = from.shipped();
  for (int32_t i = 0; i < std::ssize(specs_); ++i) {
    copy_on_device(stream, master({i}), from.at(shipped, {i}),
                   static_cast<size_t>(spec({i}).size()) * size_of(wide_type()));
  }
  refresh_compute(stream);
}

void ParameterStore::refresh_compute(const Stream& stream) {
  const Context ctx{device_, stream.native()};
  for (const ParameterGroup& group : groups_) {
    const Buffer& copy = group.array(StateArray::compute);
    if (!copy.data()) continue;
    kernels::cast(ctx, {.x = group.array(StateArray::master).data(),
                        .y = copy.data(),
                        .count = group.count(),
                        .x_type = wide_type(),
                        .y_type = compute_type_});
  }
}

void ParameterStore::reset_average(const Stream& stream) {
  for (const ParameterGroup& group : groups_) {
    const Buffer& average = group.array(StateArray::average);
    if (average.data())
      copy_on_device(stream, average.data(), group.array(StateArray::master).data(),
                     average.bytes());
  }
}

ParameterId ParameterStore::find(const std::string& name) const noexcept {
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name == name) return {static_cast<int32_t>(i)};
  }
  return {};
}

int64_t ParameterStore::count() const noexcept {
  int64_t n = 0;
  for (const ParameterSpec& p : specs_) n += p.size();
  return n;
}

int64_t ParameterStore::trainable_count() const noexcept {
  int64_t n = 0;
  for (const ParameterSpec& p : specs_) n += p.frozen ? 0 : p.size();
  return n;
}

}  // namespace saturate
