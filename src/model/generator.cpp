// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>

#include "base/error.h"
#include "kernels/decode/sample_step.h"
#include "model/decode_cache.h"
#include "model/finite.h"
#include "runtime/memory.h"
#include "runtime/replay.h"

namespace saturate::model {
namespace {

constexpr const char* kOp = "generate";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, kOp, what);
}

GeneratorOptions checked(GeneratorOptions o, const ModelConfig& c) {
  if (c.kind != ModelKind::decoder_only) {
    refuse("the model is an encoder-decoder; generation needs a decoder-only model");
  }
  if (o.sequences < 1 || o.max_length < 2) {
    refuse(fmt::format("sequences is {} and max_length {}; they must be at least 1 and 2",
                       o.sequences, o.max_length));
  }
  o.max_length = std::min(o.max_length, c.max_positions);
  if (o.sequences > INT32_MAX / o.max_length) {
    refuse(fmt::format("{} sequences of {} tokens are more than 2^31 positions; lower one of them",
                       o.sequences, o.max_length));
  }
  return o;
}

void check(const SamplingOptions& s) {
  if (s.temperature >= 0.0f && s.top_k >= 0 && s.top_p > 0.0f && s.top_p <= 1.0f &&
      s.max_tokens >= 0) {
    return;
  }
  refuse(
      fmt::format("temperature is {}, top_k {}, top_p {}, max_tokens {}: temperature, top_k and "
                  "max_tokens must not be negative and top_p must be in (0, 1]",
                  s.temperature, s.top_k, s.top_p, s.max_tokens));
}

}  // namespace

struct Generator::Impl {
  Impl(const Transformer& m, const ParameterStore& store, const GeneratorOptions& o);
  void record();
  // Continues prompts [first, first + count) and appends to out[first ...].
  void run(std::span<const std::vector<int32_t>> prompts, size_t first, size_t count,
           const SamplingOptions& sampling, const OnToken& on_token,
           std::vector<std::vector<int32_t>>& out);
  int64_t fill(std::span<const std::vector<int32_t>> prompts, size_t first, size_t count,
               const SamplingOptions& sampling);
  // Hands over what has come since the last call; true when every sequence has ended.
  bool collect(size_t first, size_t count, const OnToken& on_token,
               std::vector<std::vector<int32_t>>& out);
  void check(std::span<const std::vector<int32_t>> prompts) const;

  int64_t rows() const noexcept { return options.sequences; }
  // Arrays of 32-bit numbers, one after the other in one block: seven of (rows), then the prompts.
  enum Array : int64_t {
    ids,
    positions,
    finished,
    prompt_lengths,
    limits,
    streams,
    starts,
    prompts_at
  };
  int64_t offset(Array a) const noexcept { return static_cast<int64_t>(a) * rows(); }
  int32_t* device(Array a) const noexcept { return block.as<int32_t>() + offset(a); }
  int32_t* host(Array a) const noexcept { return host_block.as<int32_t>() + offset(a); }
  int32_t* result_of(size_t row) const noexcept {
    return result.as<int32_t>() + static_cast<int64_t>(row) * (options.max_length + 2);
  }

  const Transformer& model;
  const GeneratorOptions options;
  Stream stream;
  Buffer block, controls, workspace, arena;
  HostBuffer host_block, host_controls, result;
  // Rows that one of more_eos_ids has ended: the device knows eos_id alone, and what it makes after
  // another is not handed over.
  std::vector<char> over;
  bool stop_at_eos = true;
  DecodeCache cache;
  Tape tape;
  Replay step;
};

Generator::Impl::Impl(const Transformer& m, const ParameterStore& store, const GeneratorOptions& o)
    : model(m),
      options(checked(o, m.config())),
      stream(store.device()),
      cache(m, stream, store.compute_type(), rows() * options.max_length, rows()),
      tape(store, TapeMode::inference, nullptr),
      step(options.graph) {
  const Device where = store.device();
  const auto zeroed = [&](int64_t bytes) {
    Buffer b(where, static_cast<size_t>(bytes));
    fill_bytes(stream, b.data(), 0, b.bytes());
    return b;
  };
  const int64_t words = rows() * (static_cast<int64_t>(prompts_at) + options.max_length);
  block = zeroed(words * static_cast<int64_t>(sizeof(int32_t)));
  host_block = HostBuffer(where, block.bytes());
  controls = zeroed(sizeof(kernels::SampleControls));
  host_controls = HostBuffer(where, controls.bytes());
  result =
      HostBuffer(where, static_cast<size_t>(rows() * (options.max_length + 2)) * sizeof(int32_t));
  workspace = Buffer(where, where.is_cuda() ? kWorkspaceBytes : 0);
  record();
  arena = zeroed(static_cast<int64_t>(tape.plan()));
  stream.synchronize();
}

void Generator::Impl::record() {
  const ModelConfig& c = model.config();
  const std::vector<MixerStep> steps = cache.steps({.positions = device(positions),
                                                    .starts = device(starts),
                                                    .finished = device(finished),
                                                    .max_positions = options.max_length});
  const PackedSide side{.tokens = {.ids = device(ids),
                                   .positions = device(positions),
                                   .rows = rows(),
                                   .sequences = rows()},
                        .max_length = 1};
  const Value logits = model.logits(tape, model.decode_step(tape, side, steps));
  kernels::SampleStepArgs args{.state = {.ids = device(ids),
                                         .positions = device(positions),
                                         .finished = device(finished),
                                         .prompts = device(prompts_at),
                                         .prompt_lengths = device(prompt_lengths),
                                         .limits = device(limits),
                                         .streams = device(streams)},
                               .controls = controls.as<kernels::SampleControls>(),
                               .result = result.as<int32_t>(),
                               .rows = rows(),
                               .vocab = c.vocab_target,
                               .ld = tape.info(logits).cols,
                               .prompt_stride = options.max_length,
                               .result_stride = options.max_length + 2,
                               .dtype = tape.compute_type()};
  tape.record("sample_step", {logits}, {}, [=](const Run& r) {
    kernels::SampleStepArgs a = args;
    a.logits = r(logits);
    kernels::sample_step(r.ctx, a);
  });
}

void Generator::Impl::check(std::span<const std::vector<int32_t>> prompts) const {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const auto length = static_cast<int64_t>(prompts[i].size());
    if (length < 1 || length > options.max_length) {
      refuse(fmt::format("prompt {} has {} tokens; it must have 1 to {}", i, length,
                         options.max_length));
    }
    for (const int32_t id : prompts[i]) {
      if (id >= 0 && id < model.config().vocab_target) continue;
      refuse(fmt::format("prompt {} holds id {}; ids must be in 0 .. {}", i, id,
                         model.config().vocab_target - 1));
    }
  }
}

int64_t Generator::Impl::fill(std::span<const std::vector<int32_t>> prompts, size_t first,
                              size_t count, const SamplingOptions& sampling) {
  std::fill_n(host_block.as<char>(), host_block.bytes(), char{0});
  int64_t steps = 0;
  over.assign(static_cast<size_t>(rows()), 0);
  stop_at_eos = sampling.stop_at_eos;
  for (size_t r = 0; r < static_cast<size_t>(rows()); ++r) {
    host(starts)[r] = static_cast<int32_t>(static_cast<int64_t>(r) * options.max_length);
    result_of(r)[0] = result_of(r)[1] = 0;
    host(finished)[r] = r < count ? 0 : 1;
    if (r >= count) continue;
    const std::vector<int32_t>& prompt = prompts[first + r];
    const auto length = static_cast<int64_t>(prompt.size());
    const int64_t limit = length + std::min(sampling.max_tokens, options.max_length - length);
    if (limit == length) {  // nothing may be added
      host(finished)[r] = 1;
      result_of(r)[1] = 1;
      continue;
    }
    std::copy(prompt.begin(), prompt.end(),
              host(prompts_at) + static_cast<int64_t>(r) * options.max_length);
    host(ids)[r] = prompt[0];
    host(prompt_lengths)[r] = static_cast<int32_t>(length);
    host(limits)[r] = static_cast<int32_t>(limit);
    host(streams)[r] = static_cast<int32_t>(first + r);
    steps = std::max(steps, limit - 1);
  }
  *host_controls.as<kernels::SampleControls>() = {
      .seed = sampling.seed,
      .temperature = sampling.temperature,
      .top_p = sampling.top_p,
      .top_k = static_cast<int32_t>(std::min(sampling.top_k, model.config().vocab_target)),
      .eos = static_cast<int32_t>(sampling.stop_at_eos ? model.config().eos_id : -1)};
  copy_to_device(stream, block.data(), host_block.data(), block.bytes());
  copy_to_device(stream, controls.data(), host_controls.data(), controls.bytes());
  return steps;
}

bool Generator::Impl::collect(size_t first, size_t count, const OnToken& on_token,
                              std::vector<std::vector<int32_t>>& out) {
  bool ended = true;
  for (size_t r = 0; r < count; ++r) {
    int32_t* from = result_of(r);
    const auto load = [](int32_t& word) {
      return std::atomic_ref(word).load(std::memory_order_acquire);
    };
    const bool done = load(from[1]) != 0;  // before the count: an ended row counts no further
    const auto available = static_cast<size_t>(load(from[0]));
    std::vector<int32_t>& to = out[first + r];
    while (over[r] == 0 && to.size() < available) {
      if (std::ranges::find(model.config().more_eos_ids, from[2 + to.size()]) !=
              model.config().more_eos_ids.end() &&
          stop_at_eos) {
        over[r] = 1;
        break;
      }
      to.push_back(from[2 + to.size()]);
      if (on_token) on_token(first + r, to.back());
    }
    ended = (done || over[r] != 0) && ended;
  }
  return ended;
}

void Generator::Impl::run(std::span<const std::vector<int32_t>> prompts, size_t first, size_t count,
                          const SamplingOptions& sampling, const OnToken& on_token,
                          std::vector<std::vector<int32_t>>& out) {
  use_device(stream.device());
  const int64_t steps = fill(prompts, first, count, sampling);
  const Context ctx{stream.device(), stream.native(), workspace.data(), workspace.bytes()};
  // The host waits for the step before last only, so that the device always has one to do.
  Event passed[2] = {Event(stream.device()), Event(stream.device())};
  for (int64_t t = 0; t < steps; ++t) {
    step.enqueue(stream, [&] { tape.run(ctx, arena.data(), false); });
    passed[t % 2].record(stream);
    if (t == 0 && ctx.device.is_cuda()) continue;
    passed[ctx.device.is_cuda() ? (t - 1) % 2 : t % 2].synchronize();
    if (collect(first, count, on_token, out)) break;
  }
  stream.synchronize();
  collect(first, count, on_token, out);
  for (size_t r = 0; r < count; ++r) {
    if (result_of(r)[1] == 2) throw NonFiniteScores(kOp);
  }
}

Generator::Generator(const Transformer& model, const ParameterStore& store,
                     const GeneratorOptions& options)
    : impl_(std::make_unique<Impl>(model, store, options)) {}
Generator::~Generator() = default;

std::vector<std::vector<int32_t>> Generator::generate(std::span<const std::vector<int32_t>> prompts,
                                                      const SamplingOptions& sampling,
                                                      const OnToken& on_token) {
  check(sampling);
  impl_->check(prompts);
  std::vector<std::vector<int32_t>> out(prompts.size());
  const auto most = static_cast<size_t>(impl_->rows());
  for (size_t first = 0; first < prompts.size(); first += most) {
    impl_->run(prompts, first, std::min(most, prompts.size() - first), sampling, on_token, out);
  }
  return out;
}

}  // namespace saturate::model
