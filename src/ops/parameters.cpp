// SPDX-License-Identifier: Apache-2.0
#include "ops/parameters.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/philox.h"
#include "kernels/fp8/fp8.h"
#include "ops/factors.h"
#include "ops/layout.h"
#include "runtime/parallel_for.h"

namespace saturate {
namespace {

constexpr uint32_t kInitOp = 0xFFFFFF;  // no recorded operation reaches this number
constexpr int64_t kFp8SiteElements =
    kernels::kFp8Roles * static_cast<int64_t>(sizeof(kernels::Fp8Site) / sizeof(float));
constexpr int64_t kDrawnAtOnce = 1 << 14;  // by one thread

// Box-Muller on two 32-bit uniforms; the half keeps the logarithm finite.
double normal_of(uint32_t a, uint32_t b) {
  const double u = (static_cast<double>(a) + 0.5) * 0x1p-32;
  const double v = static_cast<double>(b) * 0x1p-32;
  return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v);
}

float first_value(const ParameterSpec& p, uint64_t seed, uint64_t parameter, int64_t element) {
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
  last_unit_.clear();
  for (const auto kind : {ParameterGroup::Kind::trained, ParameterGroup::Kind::frozen})
    groups_.emplace_back(kind, compute_type_, parallel::ShardSpec{}.reduce_axes());
  if (update_ == ParameterGroup::Update::adafactor) groups_[0].update_by(update_);
}

void ParameterStore::place(ParameterSpec& spec) {
  using Kind = ParameterGroup::Kind;
  const Kind kind = spec.frozen ? Kind::frozen : Kind::trained;
  const ParameterGroup::Axes axes = spec.shard.reduce_axes();
  const bool shared = layout_ != nullptr && !spec.frozen;
  const bool away = offload_ && !spec.frozen;
  using Update = ParameterGroup::Update;
  const bool chosen = !spec.frozen && (spec.multiplied || update_ == Update::adafactor);
  const Update update = chosen ? update_ : Update::adamw;
  const bool apart = spec.wide && (away || (shared && sharing_.zero > 0));
  const auto found = std::ranges::find_if(groups_, [&](const ParameterGroup& g) {
    return g.kind() == kind && g.storage() == spec.storage && g.axes() == axes &&
           g.holders() == spec.holders && g.sharing().read_wide == apart && g.update() == update;
  });
  spec.group = static_cast<int32_t>(found - groups_.begin());
  if (found == groups_.end()) {
    groups_.emplace_back(kind, compute_type_, axes, spec.holders);
    groups_.back().update_by(update);
    groups_.back().hold_as(spec.storage);
  }
  ParameterGroup& group = groups_[static_cast<size_t>(spec.group)];
  if ((shared || away) && group.count() == 0) {
    ParameterGroup::Sharing sharing{.read_wide = apart, .offload = away && !apart};
    if (shared) {
      const Layout::Sharers& sharers = layout_->sharers(axes);
      const bool whole = apart || sharing_.zero == 0 || sharers.sharers.size() == 1;
      sharing.zero = whole ? 0 : sharing_.zero;
      sharing.ranks = whole ? layout_->group(axes) : sharers.sharers;
      sharing.position = sharing.ranks.position(layout_->rank());
      if (!whole) sharing.replicas = sharers.replicas;
      // What lists reduce in every micro-batch (whole parameters, from level 2 on) travels as it is,
      // and so does what is read in full: it is little.
      sharing.coded = sharing_.coded_copies && (!apart || sharing_.zero == 0) &&
                      (sharing.zero > 0 || sharing_.zero < 2) && sharing.copies().size() > 1;
    }
    group.share(std::move(sharing));
  }
  if (shared && (group.count() == 0 || last_unit_[spec.group] != spec.unit)) group.begin_unit();
  last_unit_[spec.group] = spec.unit;
  spec.offset = group.add(spec.storage == Storage::nf4 ? nf4_bytes(spec) : spec.size());
  const bool fp8 = fp8_ && !spec.frozen && spec.multiplied && spec.rows % 16 == 0;
  spec.fp8_sites = -1;
  if (fp8 && spec.cols % 16 == 0) spec.fp8_sites = group.add_fp8_sites(kFp8SiteElements);
  if (update == Update::adafactor) spec.factors = group.add_factors(factor_count(spec));
}

void ParameterStore::offload() {
  SAT_ASSERT(!allocated() && layout_ == nullptr);
  offload_ = true;
  begin_groups();
  for (ParameterSpec& p : specs_) place(p);
}

void ParameterStore::update_by(ParameterGroup::Update update) {
  SAT_ASSERT(!allocated() && layout_ == nullptr);
  update_ = update;
  begin_groups();
  for (ParameterSpec& p : specs_) place(p);
}

void ParameterStore::multiply_in_fp8() {
  SAT_ASSERT(!allocated() && layout_ == nullptr);
  fp8_ = true;
  begin_groups();
  for (ParameterSpec& p : specs_) place(p);
}

void ParameterStore::multiply_in_blocks(kernels::BlockFormat format) {
  SAT_ASSERT(!allocated());
  blocks_ = format;
}

void ParameterStore::hold_moments(kernels::MomentType type) noexcept {
  SAT_ASSERT(!allocated() && (type == kernels::MomentType::wide || !offload_));
  for (ParameterGroup& group : groups_) group.hold_moments(type);
}

void ParameterStore::share(const Layout& layout, const Sharing& sharing) {
  SAT_ASSERT(!allocated() && layout_ == nullptr);
  layout_ = &layout;
  sharing_ = sharing;
  begin_groups();
  for (ParameterSpec& p : specs_) place(p);
  for (ParameterGroup& group : groups_)
    // What is gathered in the step is one unit.
    if (group.kind() == ParameterGroup::Kind::trained)
      group.make_buckets(group.sharing().zero >= 3 ? 0 : sharing.bucket_elements);
}

ParameterId ParameterStore::add(ParameterSpec spec) {
  SAT_ASSERT(!allocated() && spec.rows > 0 && spec.cols > 0);
  SAT_ASSERT(find(spec.name).index < 0 && layout_ == nullptr);
  if (spec.number < 0) spec.number = added_;
  ++added_;
  if (!holding_) return {};
  spec.unit = unit_;
  place(spec);
  specs_.push_back(std::move(spec));
  return {static_cast<int32_t>(specs_.size() - 1)};
}

void ParameterStore::freeze(std::span<const ParameterId> ids, bool elsewhere) {
  SAT_ASSERT(!allocated() && layout_ == nullptr);
  for (const ParameterId id : ids) {
    ParameterSpec& p = specs_[static_cast<size_t>(id.index)];
    p.frozen = true;
    p.elsewhere = p.elsewhere || elsewhere;
  }
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
  for (const ParameterGroup& group : groups_)
    if (!group.in_host(a)) sum += group.bytes(a, purpose);
  return sum;
}

size_t ParameterStore::host_bytes(StateArray a, Purpose purpose) const noexcept {
  size_t sum = 0;
  for (const ParameterGroup& group : groups_)
    if (group.in_host(a)) sum += group.bytes(a, purpose);
  return sum;
}

void* ParameterStore::at(StateArray a, ParameterId id) const noexcept {
  const ParameterSpec& p = spec(id);
  if (p.frozen && a == StateArray::average && shipped() == a) a = StateArray::master;
  return group_of(p).at(a, p.offset);
}

kernels::Fp8Site* ParameterStore::fp8_sites(ParameterId id) const noexcept {
  const ParameterSpec& p = spec(id);
  if (p.fp8_sites < 0) return nullptr;
  return static_cast<kernels::Fp8Site*>(group_of(p).at(StateArray::fp8_sites, p.fp8_sites));
}

std::optional<kernels::BlockFormat> ParameterStore::block_format(ParameterId id) const noexcept {
  const ParameterSpec& p = spec(id);
  const bool fits = p.multiplied && !p.frozen && p.rows % 32 == 0 && p.cols % 32 == 0;
  return fits ? blocks_ : std::nullopt;
}

void ParameterStore::initialise(const Stream& stream, uint64_t seed) { draw(stream, seed, true); }

void ParameterStore::initialise_trained(const Stream& stream, uint64_t seed) {
  draw(stream, seed, false);
}

void ParameterStore::draw(const Stream& stream, uint64_t seed, bool frozen_too) {
  std::vector<float> values;
  for (size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& p = specs_[i];
    if (p.frozen && !frozen_too) continue;
    const auto number = static_cast<uint64_t>(p.number);
    const bool cut = p.whole.rows > 0;
    const std::vector<parallel::ShardRun> all{{0, p.size()}};
    const std::vector<parallel::ShardRun>& runs = cut ? p.whole.runs : all;
    const int64_t width = cut ? p.whole.cols : p.cols;
    values.resize(static_cast<size_t>(p.size()));
    // Where each run's values begin among this rank's. A cut through rows leaves many short runs, so
    // the threads share out the values and not the runs.
    std::vector<int64_t> starts{0};
    for (const parallel::ShardRun& run : runs) starts.push_back(starts.back() + run.length);
    SAT_ASSERT(starts.back() == p.size());
    const auto draw_some = [&](int64_t begin, int64_t end) {
      auto r = static_cast<size_t>(std::upper_bound(starts.begin(), starts.end(), begin) -
                                   starts.begin() - 1);
      for (int64_t at = begin; at < end; ++at) {
        while (at >= starts[r + 1]) ++r;
        const int64_t e = runs[r].global_offset + at - starts[r];
        values[static_cast<size_t>(at)] =
            e / width == p.zero_row ? 0.0f : first_value(p, seed, number, e);
      }
    };
    parallel_for(p.size(), kDrawnAtOnce, draw_some);
    set(stream, {static_cast<int32_t>(i)}, values.data());
  }
  refresh_compute(stream);
}

void ParameterStore::set(const Stream& stream, ParameterId id, const float* values) {
  const ParameterSpec& p = spec(id);
  if (p.storage != Storage::full) return set_held(stream, id, values);
  const ParameterGroup& group = group_of(p);
  for (const OwnedRange& r : group.owned()) {
    const int64_t begin = std::max(r.begin, p.offset), end = std::min(r.end, p.offset + p.size());
    if (begin >= end) continue;
    char* const to = group.array(StateArray::master).as<char>() +
                     static_cast<size_t>(r.local + begin - r.begin) * size_of(wide_type());
    const float* const from = values + (begin - p.offset);
    if (wide_type() == DType::f64) {
      std::copy_n(from, end - begin, reinterpret_cast<double*>(to));
    } else {
      copy_to_device(stream, to, from, static_cast<size_t>(end - begin) * sizeof(float));
    }
  }
  stream.synchronize();
}

void ParameterStore::get(const Stream& stream, ParameterId id, std::span<float> out,
                         StateArray array) const {
  SAT_ASSERT(std::ssize(out) == spec(id).size());
  if (spec(id).storage != Storage::full) return get_held(stream, id, out);
  const auto take = [&](ParameterId found, const void* from) {
    if (found.index != id.index) return;
    if (wide_type() == DType::f64) {
      const double* src = static_cast<const double*>(from);
      std::transform(src, src + out.size(), out.begin(),
                     [](double v) { return static_cast<float>(v); });
      return;
    }
    copy_to_host(stream, out.data(), from, out.size_bytes());
  };
  visit_group(stream, spec(id).group, array, take);
  stream.synchronize();
}

void ParameterStore::visit(const Stream& stream, StateArray array,
                           const std::function<void(ParameterId, const void*)>& take) const {
  for (int32_t g = 0; g < std::ssize(groups_); ++g) visit_group(stream, g, array, take);
}

void ParameterStore::visit_group(const Stream& stream, int32_t g, StateArray array,
                                 const std::function<void(ParameterId, const void*)>& take) const {
  const ParameterGroup& group = groups_[static_cast<size_t>(g)];
  if (group.kind() == ParameterGroup::Kind::frozen && array == StateArray::average &&
      shipped() == array)
    array = StateArray::master;
  if (array == StateArray::master && group.storage() == Storage::compute)
    array = StateArray::compute;
  const Block& held = group.array(array);
  if (held.data() == nullptr) return;
  const size_t element = group.element_bytes(array);
  const auto visit_in = [&](parallel::FlatRange range, const char* memory) {
    for (int32_t i = 0; take && i < std::ssize(specs_); ++i) {
      const ParameterSpec& p = spec({i});
      if (p.group == g && p.offset >= range.begin && p.offset < range.end)
        take({i}, memory + static_cast<size_t>(p.offset - range.begin) * element);
    }
  };
  if (!group.holds_ranges(array)) return visit_in({0, group.count()}, held.as<char>());
  // A bucket at a time, so that this takes little memory.
  const ParameterGroup::Sharing& sharing = group.sharing();
  const Context ctx{device_, stream.native()};
  parallel::Communicator& ranks = *layout_->communicator();
  int64_t longest = 0;
  for (const parallel::FlatRange& b : group.buckets()) longest = std::max(longest, b.end - b.begin);
  const Buffer whole(device_, static_cast<size_t>(longest) * element);
  const char* own = held.as<char>();  // slices lie in the order of buckets
  for (const parallel::FlatRange& b : group.buckets()) {
    const int64_t slice = (b.end - b.begin) / sharing.ranks.size();
    const parallel::Collective gather{.kind = parallel::CollectiveKind::all_gather,
                                      .group = sharing.ranks,
                                      .dtype = group.type_of(array),
                                      .count = slice};
    // Collectives take memory of the device alone.
    char* const mine = whole.as<char>() + static_cast<size_t>(sharing.position * slice) * element;
    if (group.in_host(array)) {
      copy_to_device(stream, mine, own, static_cast<size_t>(slice) * element);
    }
    ranks.wait(ranks.start(gather, group.in_host(array) ? mine : own, whole.data(), ctx), ctx);
    visit_in(b, whole.as<char>());
    own += static_cast<size_t>(slice) * element;
  }
  stream.synchronize();  // before `whole` goes
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
  from.visit(stream, from.shipped(), [&](ParameterId id, const void* values) {
    if (from.device() == device_) {
      copy_on_device(stream, held(id), values, held_bytes(id));
    } else {  // from the host
      copy_to_device(stream, held(id), values, held_bytes(id));
    }
  });
  refresh_compute(stream);
}

void ParameterStore::refresh_compute(const Stream& stream) {
  const Context ctx{device_, stream.native()};
  for (const ParameterGroup& group : groups_) group.refresh_compute(ctx);
}

void ParameterStore::reset_average(const Stream& stream) {
  for (const ParameterGroup& group : groups_) {
    const Block& average = group.array(StateArray::average);
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
