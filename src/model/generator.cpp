// SPDX-License-Identifier: Apache-2.0
#include "model/generator.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/timed_part.h"
#include "model/finite.h"
#include "model/generator_memory.h"

namespace saturate::model {
namespace {

constexpr const char* kOp = "generate";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, kOp, what);
}

// With the same bits each pass is of all rows, however few are taken: few are enough then.
int64_t prompt_rows_for(const GeneratorOptions& o, const ModelConfig& c, const ParameterStore& s) {
  if (!s.device().is_cuda() || o.same_bits) return kPromptRows;
  const int64_t inner = c.ffn * (c.experts > 0 ? c.experts_per_token : 1);
  // As planned for a gated layer, whose inner values are the most that is there at a time.
  const auto bytes = static_cast<int64_t>(size_of(s.compute_type())) * (5 * c.d_model + 2 * inner);
  return usual_prompt_rows(capability_of(s.device()).multiprocessors,
                           device_info(s.device()).memory_bytes, bytes);
}

GeneratorOptions checked(GeneratorOptions o, const ModelConfig& c, const ParameterStore& store) {
  if (c.kind != ModelKind::decoder_only) {
    refuse("the model is an encoder-decoder; generation needs a decoder-only model");
  }
  if (o.sequences < 1 || o.max_length < 2 || o.prompt_rows < 0) {
    refuse(
        fmt::format("sequences is {}, max_length {} and prompt_rows {}; they must be at least 1, "
                    "2 and 0",
                    o.sequences, o.max_length, o.prompt_rows));
  }
  o.max_length = std::min(o.max_length, c.max_positions);
  if (o.sequences > INT32_MAX / o.max_length) {
    refuse(fmt::format("{} sequences of {} tokens are more than 2^31 positions; lower one of them",
                       o.sequences, o.max_length));
  }
  for (const int32_t id : o.suppressed) {
    if (id >= 0 && id < c.vocab_target) continue;
    refuse(fmt::format("id {} is to be suppressed; it must be in 0 .. {}", id, c.vocab_target - 1));
  }
  if (o.prompt_rows == 0) o.prompt_rows = prompt_rows_for(o, c, store);
  // A pass takes a prompt whole, and no more than all prompts together.
  o.prompt_rows = std::min(std::max(o.prompt_rows, o.max_length), o.sequences * o.max_length);
  o.prompt_rows = (o.prompt_rows + 7) / 8 * 8;
  return o;
}

void check(const SamplingOptions& s, const std::string& name) {
  if (!(s.temperature >= 0.0f) || s.top_k < 0 || !(s.top_p > 0.0f) || !(s.top_p <= 1.0f) ||
      !(s.min_p >= 0.0f && s.min_p <= 1.0f) || s.max_tokens < 0) {
    refuse(
        fmt::format("{}: temperature is {}, top_k {}, top_p {}, min_p {}, max_tokens {}: "
                    "temperature, top_k and "
                    "max_tokens must not be negative, top_p must be in (0, 1] and min_p in 0 .. 1",
                    name, s.temperature, s.top_k, s.top_p, s.min_p, s.max_tokens));
  }
  if (!(s.repetition_penalty > 0.0f) || s.no_repeat_ngram < 0 || s.min_tokens < 0) {
    refuse(
        fmt::format("{}: repetition_penalty is {}, no_repeat_ngram {}, min_tokens {}: the first "
                    "must be above 0 and none of the others negative",
                    name, s.repetition_penalty, s.no_repeat_ngram, s.min_tokens));
  }
  if (!std::isfinite(s.presence_penalty) || !std::isfinite(s.frequency_penalty)) {
    refuse(fmt::format("{}: presence_penalty is {} and frequency_penalty {}: they must be numbers",
                       name, s.presence_penalty, s.frequency_penalty));
  }
  if (std::ssize(s.biases) > kMostBiases) {
    refuse(
        fmt::format("{}: {} ids have a bias; at most {} may", name, s.biases.size(), kMostBiases));
  }
  if (s.constraint && (!s.stop_at_eos || s.min_tokens > 0 || s.no_repeat_ngram > 0)) {
    refuse(name +
           ": what is held to a form ends with it; leave out ignoring the end, min_tokens and "
           "no_repeat_ngram");
  }
  if (s.min_tokens > s.max_tokens) {
    refuse(
        fmt::format("{}: min_tokens is {} and max_tokens {}: raise the second or lower the first",
                    name, s.min_tokens, s.max_tokens));
  }
}

bool any_of(std::span<const uint32_t> words) {
  return std::ranges::any_of(words, [](uint32_t word) { return word != 0; });
}

struct Sequence {
  int64_t ticket = 0;
  std::vector<int32_t> prompt;
  kernels::SampleSequence wish = {};
  std::vector<std::pair<int32_t, float>> biases = {};
  std::shared_ptr<TokenConstraint> constraint = {};
  int32_t state = 0;  // of the constraint
  Continuation so_far = {};
};

}  // namespace

struct Generator::Impl {
  Impl(const Transformer& m, const ParameterStore& s, const GeneratorOptions& o);
  ~Impl() { memory.stream().synchronize(); }

  Sequence make(std::vector<int32_t> prompt, const SamplingOptions& sampling,
                const std::string& name) const;
  int64_t add(Sequence sequence);
  void step(const OnToken& on_token, const OnEnd& on_end);
  void cancel(int64_t ticket);
  void reset();
  int64_t held() const { return std::ssize(waiting) + std::ssize(full) + under_way; }

  // Of one step.
  void drop_cancelled(GeneratorMemory::Intake& intake);
  void admit(GeneratorMemory::Intake& intake);
  void begin(Sequence& sequence, int64_t place, GeneratorMemory::Intake& intake);
  static void vacate(int64_t place, GeneratorMemory::Intake& intake);
  int64_t close_up(GeneratorMemory::Intake& intake);
  void enqueue(const GeneratorMemory::Intake& intake, int64_t count);
  void wait();
  struct News {
    int64_t ticket;
    int32_t id;
    float log_probability;
    std::optional<Continuation> all;
  };
  std::vector<News> collect();

  const ParameterStore& store;
  const GeneratorOptions options;
  const Device device;
  GeneratorMemory memory;
  Buffer workspace, arena, suppressed;
  bool reads_prompts = true, moves = true;
  std::map<int64_t, std::unique_ptr<RecordedPlan>> readers;
  std::map<std::pair<int64_t, int64_t>, std::unique_ptr<RecordedPlan>> steps;

  std::deque<Sequence> waiting;
  std::vector<int64_t> full;  // tickets of those that may not get a token
  std::vector<std::optional<Sequence>> places;
  std::vector<int32_t> parts;    // of the result, and slots of the cache, that are free
  std::vector<int32_t> leaving;  // parts that a step which runs may still write
  std::set<int64_t> cancelled;   // tickets of sequences under way
  std::set<int64_t> given_up;    // tickets cancelled by a caller who is being told
  bool telling = false;
  int64_t under_way = 0, next_ticket = 0;
  uint64_t turn = 0;
  Event passed[2];
  bool running = false;
};

Generator::Impl::Impl(const Transformer& m, const ParameterStore& s, const GeneratorOptions& o)
    : store(s),
      options(checked(o, m.config(), s)),
      device(s.device()),
      memory(m, s, options, options.prompt_rows),
      workspace(device, device.is_cuda() ? kWorkspaceBytes : 0),
      suppressed(device, options.suppressed.size() * sizeof(int32_t)),
      places(static_cast<size_t>(options.sequences)),
      parts(places.size()),
      passed{Event(device), Event(device)} {
  for (const Mixer* mixer : m.decoder_mixers()) {
    reads_prompts = reads_prompts && mixer->reads_prompts();
    moves = moves && mixer->decode_state(s.compute_type()).row_bytes == 0;
  }
  std::iota(parts.rbegin(), parts.rend(), 0);
  copy_to_device(memory.stream(), suppressed.data(), options.suppressed.data(), suppressed.bytes());
  memory.stream().synchronize();
}

Sequence Generator::Impl::make(std::vector<int32_t> prompt, const SamplingOptions& sampling,
                               const std::string& name) const {
  check(sampling, name);
  const ModelConfig& c = memory.model().config();
  const auto length = std::ssize(prompt);
  if (length < 1 || length > options.max_length) {
    refuse(fmt::format("{} has {} tokens; it must have 1 to {}", name, length, options.max_length));
  }
  for (const auto* ids :
       std::initializer_list<const std::vector<int32_t>*>{&prompt, &sampling.stop_ids}) {
    for (const int32_t id : *ids) {
      if (id >= 0 && id < c.vocab_target) continue;
      refuse(fmt::format("{} holds id {}; ids must be in 0 .. {}", name, id, c.vocab_target - 1));
    }
  }
  if (sampling.adapter < -1 || sampling.adapter >= c.lora.side_by_side) {
    refuse(fmt::format("{}: adapter is {} and the model has {} side by side", name,
                       sampling.adapter, c.lora.side_by_side));
  }
  std::set<int32_t> biased;
  for (const auto& [id, bias] : sampling.biases) {
    if (id >= 0 && id < c.vocab_target && std::isfinite(bias) && biased.insert(id).second) continue;
    refuse(fmt::format(
        "{}: id {} has the bias {}; ids must be in 0 .. {}, each once, and biases numbers", name,
        id, bias, c.vocab_target - 1));
  }
  const int64_t most = std::min(sampling.max_tokens, options.max_length - length);
  Sequence s{
      .prompt = std::move(prompt), .biases = sampling.biases, .constraint = sampling.constraint};
  s.wish = {.seed = sampling.seed,
            .stream = sampling.stream.value_or(0),
            .temperature = sampling.temperature,
            .top_p = sampling.top_p,
            .top_k = static_cast<int32_t>(std::min(sampling.top_k, c.vocab_target)),
            .min_p = sampling.min_p,
            .prompt = static_cast<int32_t>(length),
            .limit = static_cast<int32_t>(length + most),
            .wants_scores = sampling.log_probabilities ? 1 : 0,
            .adapter = sampling.adapter,
            .rules = {.repetition_penalty = sampling.repetition_penalty,
                      .presence_penalty = sampling.presence_penalty,
                      .frequency_penalty = sampling.frequency_penalty,
                      .no_repeat_ngram = static_cast<int32_t>(
                          std::min(sampling.no_repeat_ngram, options.max_length)),
                      .least = static_cast<int32_t>(std::min(sampling.min_tokens, most))},
            .biases = static_cast<int32_t>(sampling.biases.size()),
            .chooses = sampling.constraint ? 1 : 0};
  std::vector<int32_t> ends = sampling.stop_ids;
  if (sampling.stop_at_eos) {
    if (c.eos_id >= 0) ends.push_back(static_cast<int32_t>(c.eos_id));
    ends.insert(ends.end(), c.more_eos_ids.begin(), c.more_eos_ids.end());
  }
  if (std::ssize(ends) > kernels::kMostEnds) {
    refuse(fmt::format("{}: {} ids are to end it, the model's own among them; at most {} may", name,
                       ends.size(), kernels::kMostEnds));
  }
  std::ranges::copy(ends, s.wish.ends);
  s.wish.end_count = static_cast<int32_t>(ends.size());
  if (!sampling.stream) s.wish.stream = -1;  // by its number
  return s;
}

int64_t Generator::Impl::add(Sequence sequence) {
  sequence.ticket = next_ticket++;
  if (sequence.wish.stream < 0) sequence.wish.stream = static_cast<int32_t>(sequence.ticket);
  const int64_t ticket = sequence.ticket;
  if (sequence.wish.limit == sequence.wish.prompt) {
    full.push_back(ticket);
  } else {
    waiting.push_back(std::move(sequence));
  }
  return ticket;
}

void Generator::Impl::cancel(int64_t ticket) {
  if (telling) given_up.insert(ticket);
  const auto is = [ticket](const Sequence& s) { return s.ticket == ticket; };
  if (std::erase_if(waiting, is) > 0 || std::erase(full, ticket) > 0) return;
  if (std::ranges::any_of(places, [&](const auto& p) { return p && is(*p); }) &&
      cancelled.insert(ticket).second) {
    --under_way;
  }
}

void Generator::Impl::reset() {
  memory.stream().synchronize();
  memory.clear();
  waiting.clear();
  full.clear();
  std::ranges::fill(places, std::nullopt);
  leaving.clear();
  cancelled.clear();
  parts.resize(places.size());
  std::iota(parts.rbegin(), parts.rend(), 0);
  given_up.clear();
  under_way = 0;
  running = telling = false;
}

// A step that runs while a sequence is cancelled may still write its result, so that is free one
// step later.
void Generator::Impl::drop_cancelled(GeneratorMemory::Intake& intake) {
  parts.insert(parts.end(), leaving.begin(), leaving.end());
  leaving.clear();
  for (size_t i = 0; i < places.size() && !cancelled.empty(); ++i) {
    if (!places[i] || cancelled.erase(places[i]->ticket) == 0) continue;
    intake.placements.push_back(
        {.what = kernels::SamplePlacement::What::clear, .to = static_cast<int32_t>(i)});
    leaving.push_back(places[i]->wish.result);
    places[i].reset();
  }
}

// At once: the first token is what people wait for.
void Generator::Impl::admit(GeneratorMemory::Intake& intake) {
  for (size_t place = 0; place < places.size() && !waiting.empty() && !parts.empty(); ++place) {
    if (places[place]) continue;
    const auto tokens = std::ssize(waiting.front().prompt) - 1;
    if (std::ssize(intake.ids) + tokens > options.prompt_rows) return;
    begin(waiting.front(), static_cast<int64_t>(place), intake);
    places[place] = std::move(waiting.front());
    waiting.pop_front();
    ++under_way;
  }
}

// A place that a cancelled sequence leaves in this very intake need not be cleared: it is filled.
void Generator::Impl::vacate(int64_t place, GeneratorMemory::Intake& intake) {
  std::erase_if(intake.placements, [place](const auto& p) { return p.to == place; });
}

// All tokens of the prompt but the last are read in one pass; the last is the first step's.
void Generator::Impl::begin(Sequence& s, int64_t place, GeneratorMemory::Intake& intake) {
  s.wish.result = parts.back();
  parts.pop_back();
  memory.expect(s.wish.result);
  memory.set_biases(s.wish.result, s.biases);
  if (s.constraint) {
    s.state = s.constraint->start();
    memory.set_allowed(s.wish.result, s.constraint->allowed(s.state));
  }
  vacate(place, intake);
  const int64_t slot = s.wish.result * options.max_length;
  const auto first = reads_prompts ? s.wish.prompt - 1 : 0;
  intake.placements.push_back({.what = kernels::SamplePlacement::What::start,
                               .to = static_cast<int32_t>(place),
                               .first_slot = static_cast<int32_t>(slot),
                               .prompt_at = static_cast<int32_t>(intake.prompts.size()),
                               .first = first,
                               .sequence = s.wish});
  intake.prompts.insert(intake.prompts.end(), s.prompt.begin(), s.prompt.end());
  for (int32_t j = 0; j < first; ++j) {
    intake.ids.push_back(s.prompt[static_cast<size_t>(j)]);
    intake.positions.push_back(j);
    intake.slots.push_back(static_cast<int32_t>(slot + j));
    intake.adapters.push_back(s.wish.adapter);
  }
  if (first > 0) intake.cu.push_back(static_cast<int32_t>(intake.ids.size()));
}

int64_t Generator::Impl::close_up(GeneratorMemory::Intake& intake) {
  if (!moves) return std::ssize(places);
  // Where weights are not packed: below four rows OpenBLAS sums in another order.
  const bool packed = store.packs() && memory.model().config().lora.empty();
  const int64_t count =
      step_size(device, std::ssize(places), under_way, packed ? 1 : 4, options.same_bits);
  size_t to = 0;
  for (auto from = static_cast<size_t>(count); from < places.size(); ++from) {
    if (!places[from]) continue;
    while (places[to]) ++to;
    vacate(static_cast<int64_t>(to), intake);
    intake.placements.push_back({.what = kernels::SamplePlacement::What::move,
                                 .to = static_cast<int32_t>(to),
                                 .from = static_cast<int32_t>(from)});
    std::swap(places[to], places[from]);
  }
  return count;
}

void Generator::Impl::enqueue(const GeneratorMemory::Intake& intake, int64_t count) {
  const Stream& stream = memory.stream();
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  const int64_t rows =
      prompt_pass_size(device, options.prompt_rows, std::ssize(intake.ids), options.same_bits);
  if (!intake.empty()) memory.take_in(ctx, intake, rows, static_cast<int>(turn % 2));
  if (rows > 0) {
    std::unique_ptr<RecordedPlan>& reader = readers[rows];
    if (!reader) reader = record_prompts(store, memory, options, rows);
    reader->run(ctx, arena);
  }
  if (under_way == 0) return;
  int64_t needed = 1;
  for (const std::optional<Sequence>& s : places) {
    if (s) needed = std::max<int64_t>(needed, s->wish.limit);
  }
  const int64_t bound = position_bound(device, options.max_length, needed, options.same_bits);
  std::unique_ptr<RecordedPlan>& step = steps[{count, bound}];
  if (!step) {
    step = record_step(store, memory, options,
                       {suppressed.as<int32_t>(), std::ssize(options.suppressed)}, count, bound);
  }
  step->run(ctx, arena);
}

// The host looks at what the step before has left, so that the device always has one to do; but at what
// this one leaves where the next depends on it.
void Generator::Impl::wait() {
  const bool ahead = device.is_cuda() &&
                     std::ranges::none_of(places, [](const auto& p) { return p && p->constraint; });
  passed[turn % 2].record(memory.stream());
  if (running || !ahead) passed[ahead ? (turn + 1) % 2 : turn % 2].synchronize();
  running = true;
  ++turn;
}

std::vector<Generator::Impl::News> Generator::Impl::collect() {
  std::vector<News> events;
  for (std::optional<Sequence>& s : places) {
    if (!s || cancelled.contains(s->ticket)) continue;
    const int64_t part = s->wish.result;
    const int32_t ending = memory.ending(part);
    for (const int32_t drawn = memory.drawn(part); std::ssize(s->so_far.ids) < drawn;) {
      const auto i = std::ssize(s->so_far.ids);
      const float score = s->wish.wants_scores != 0 ? memory.log_probability(part, i) : 0.0f;
      s->so_far.ids.push_back(memory.token(part, i));
      if (s->constraint) s->state = s->constraint->next(s->state, s->so_far.ids.back());
      if (s->wish.wants_scores != 0) s->so_far.log_probabilities.push_back(score);
      events.push_back({s->ticket, s->so_far.ids.back(), score, std::nullopt});
    }
    if (ending == 0) {
      if (s->constraint && !s->so_far.ids.empty())
        memory.set_allowed(part, s->constraint->allowed(s->state));
      continue;
    }
    const bool at_limit = std::ssize(s->so_far.ids) == s->wish.limit - s->wish.prompt;
    s->so_far.ending = ending == 2 ? Ending::not_finite : at_limit ? Ending::length : Ending::stop;
    if (ending == 2 && s->constraint && !any_of(s->constraint->allowed(s->state)))
      s->so_far.ending = Ending::no_token;
    events.push_back({s->ticket, -1, 0.0f, std::move(s->so_far)});
    parts.push_back(static_cast<int32_t>(part));
    s.reset();
    --under_way;
  }
  return events;
}

void Generator::Impl::step(const OnToken& on_token, const OnEnd& on_end) {
  telling = false;
  given_up.clear();
  if (held() == 0 && cancelled.empty() && leaving.empty()) return;
  std::vector<News> events;
  try {
    use_device(device);
    for (const int64_t ticket : full) events.push_back({ticket, -1, 0.0f, Continuation{}});
    full.clear();
    GeneratorMemory::Intake intake;
    drop_cancelled(intake);
    admit(intake);
    const int64_t count = close_up(intake);
    enqueue(intake, count);
    wait();
    for (News& e : collect()) events.push_back(std::move(e));
  } catch (...) {
    reset();
    throw;
  }
  telling = true;
  for (News& e : events) {
    if (given_up.contains(e.ticket)) continue;
    if (e.all) {
      if (on_end) on_end(e.ticket, std::move(*e.all));
    } else if (on_token) {
      on_token(e.ticket, e.id, e.log_probability);
    }
  }
  telling = false;
}

Generator::Generator(const Transformer& model, const ParameterStore& store,
                     const GeneratorOptions& options)
    : impl_(std::make_unique<Impl>(model, store, options)) {}
Generator::~Generator() = default;

const GeneratorOptions& Generator::options() const noexcept { return impl_->options; }
int64_t Generator::held() const noexcept { return impl_->held(); }
int64_t Generator::room() const noexcept {
  return std::max<int64_t>(0, std::ssize(impl_->places) - impl_->held());
}
int64_t Generator::add(std::vector<int32_t> prompt, const SamplingOptions& sampling) {
  return impl_->add(impl_->make(std::move(prompt), sampling, "the prompt"));
}
void Generator::cancel(int64_t ticket) { impl_->cancel(ticket); }
void Generator::step(const OnToken& on_token, const OnEnd& on_end) {
  impl_->step(on_token, on_end);
}

std::vector<std::vector<int32_t>> Generator::generate(
    std::span<const std::vector<int32_t>> prompts, const SamplingOptions& sampling,
    const std::function<void(size_t prompt, int32_t id)>& on_token) {
  if (held() != 0) {
    refuse(fmt::format("{} sequences are under way; take their results first", held()));
  }
  std::vector<Sequence> sequences;
  for (size_t i = 0; i < prompts.size(); ++i) {
    sequences.push_back(impl_->make(prompts[i], sampling, fmt::format("prompt {}", i)));
    if (!sampling.stream) sequences.back().wish.stream = static_cast<int32_t>(i);
  }
  const int64_t first = impl_->next_ticket;
  for (Sequence& s : sequences) impl_->add(std::move(s));
  std::vector<std::vector<int32_t>> out(prompts.size());
  bool finite = true;
  try {
    while (held() > 0) {
      step(
          [&](int64_t ticket, int32_t id, float) {
            if (on_token) on_token(static_cast<size_t>(ticket - first), id);
          },
          [&](int64_t ticket, Continuation all) {
            finite = finite && all.ending != Ending::not_finite && all.ending != Ending::no_token;
            out[static_cast<size_t>(ticket - first)] = std::move(all.ids);
          });
    }
  } catch (...) {  // of on_token: what else there was is given up
    impl_->reset();
    throw;
  }
  if (!finite) throw NonFiniteScores(kOp);
  return out;
}

}  // namespace saturate::model
