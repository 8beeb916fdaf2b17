// SPDX-License-Identifier: Apache-2.0
#include "model/translator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <deque>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/timed_part.h"
#include "model/finite.h"
#include "model/slot_ranges.h"
#include "model/translator_memory.h"
#include "model/translator_plan.h"

namespace saturate::model {
namespace {

constexpr const char* kOp = "translate";

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, kOp, what);
}

TranslatorOptions checked(TranslatorOptions o, const ModelConfig& c) {
  if (c.kind != ModelKind::encoder_decoder) {
    refuse("the model is decoder-only; translation needs an encoder-decoder");
  }
  const auto in_vocabulary = [&](int64_t id) { return id >= 0 && id < c.vocab_target; };
  if (!in_vocabulary(c.eos_id) || !in_vocabulary(c.decoder_start_id)) {
    refuse(fmt::format("eos_id is {} and decoder_start_id {}: translation needs both, below {}",
                       c.eos_id, c.decoder_start_id, c.vocab_target));
  }
  if (o.sentences < 1 || o.source_rows < 1 || o.max_source < 1 || o.max_target < 1) {
    refuse(
        fmt::format("sentences is {}, source_rows {}, max_source {}, max_target {}: all must be "
                    "at least 1",
                    o.sentences, o.source_rows, o.max_source, o.max_target));
  }
  if (o.beam < 1 || o.beam > kernels::kMaxBeam) {
    refuse(fmt::format("beam is {}; it must be in 1 .. {}", o.beam, kernels::kMaxBeam));
  }
  if (!(o.length_factor >= 0.0f) || o.length_offset < 0 || !(o.length_penalty >= 0.0f)) {
    refuse(
        fmt::format("length_factor is {}, length_offset {}, length_penalty {}: none may be "
                    "negative",
                    o.length_factor, o.length_offset, o.length_penalty));
  }
  for (const int32_t id : o.suppressed) {
    if (in_vocabulary(id) && id != c.eos_id) continue;
    refuse(fmt::format("id {} is to be suppressed; it must be in 0 .. {} and not end-of-sentence",
                       id, c.vocab_target - 1));
  }
  if (o.shortlist != nullptr && c.output_soft_cap > 0)
    refuse("the model caps its logits, which a shortlist does not do; leave the shortlist out");
  o.max_source = std::min(o.max_source, c.max_positions);
  o.max_target = std::min(o.max_target, c.max_positions);
  o.source_rows = (std::max(o.source_rows, o.max_source) + 7) / 8 * 8;
  return o;
}

// Rows of all models belong to the same hypotheses, whose tokens all read and choose between.
TranslatorOptions checked(TranslatorOptions o, std::span<const EnsembleModel> models) {
  if (models.empty() || std::ssize(models) > kernels::kMaxModels) {
    refuse(fmt::format("{} models are to translate together; give 1 to {}", models.size(),
                       kernels::kMaxModels));
  }
  const EnsembleModel& first = models[0];
  for (size_t i = 0; i < models.size(); ++i) {
    const EnsembleModel& m = models[i];
    if (!(m.weight > 0) || !std::isfinite(m.weight))
      refuse(fmt::format("the weight of model {} is {}; it must be above 0", i + 1, m.weight));
    o = checked(o, m.model->config());
    if (m.store->device() != first.store->device() ||
        m.store->compute_type() != first.store->compute_type())
      refuse(fmt::format("models 1 and {} differ in device or precision", i + 1));
    const ModelConfig &a = first.model->config(), &b = m.model->config();
    for (const auto& [what, own, other] :
         {std::tuple{"vocab_source", a.vocab_source, b.vocab_source},
          {"vocab_target", a.vocab_target, b.vocab_target},
          {"eos_id", a.eos_id, b.eos_id},
          {"pad_id", a.pad_id, b.pad_id},
          {"decoder_start_id", a.decoder_start_id, b.decoder_start_id}}) {
      if (own == other) continue;
      refuse(
          fmt::format("{} is {} in model 1 and {} in model {}; models that translate together "
                      "need the same",
                      what, own, other, i + 1));
    }
  }
  return o;
}

// Tokens of a GPU's encoder pass: more of them compute no faster for each.
constexpr int64_t kEncoderRowsOfAGpu = 8192;

TranslatorSizes sizes_of(const TranslatorOptions& o, bool cuda) {
  TranslatorSizes s{.places = o.sentences,
                    .encoder_rows = o.source_rows,
                    .longest = o.max_target,
                    .longest_source = o.max_source};
  // The longest translations that source_rows tokens in so many sources can have.
  const double most = static_cast<double>(o.length_factor) * static_cast<double>(o.source_rows) +
                      static_cast<double>(o.sentences) * static_cast<double>(o.length_offset + 1);
  const auto all = static_cast<double>(o.sentences) * static_cast<double>(o.max_target);
  s.slots = std::max(static_cast<int64_t>(std::min(most, all)), o.max_target) * o.beam;
  // Sources wait there too, encoded (Impl::read()). On a GPU there is room for twice the tokens that
  // were planned, since many short sentences have slots for more of them, and for two passes.
  if (cuda && !o.same_bits)
    s.encoder_rows = std::min(s.encoder_rows, std::max(kEncoderRowsOfAGpu, o.max_source));
  s.memory_rows = cuda ? 2 * (o.source_rows + s.encoder_rows) : o.source_rows + o.source_rows / 4;
  if (s.slots > INT32_MAX) {
    refuse(
        fmt::format("sentences {}, max_target {} and beam {} make {} positions, more than 2^31; "
                    "lower one of them",
                    o.sentences, o.max_target, o.beam, s.slots));
  }
  return s;
}

// Of hypotheses that have the same token, or an end, at position `at`, the first: they are of one
// group, which began with it.
void keep_one_each(std::vector<Hypothesis>& found, size_t at) {
  std::set<int32_t> seen;
  std::erase_if(found, [&](const Hypothesis& h) {
    return !seen.insert(at < h.ids.size() ? h.ids[at] : -1).second;
  });
}

struct Sentence {
  int64_t ticket = 0;
  std::vector<int32_t> source, prefix;
  kernels::BeamSentence search = {};
  std::vector<int32_t> candidates = {};  // ids, ascending; empty: all
  std::vector<int32_t> phrase_tokens = {}, phrase_lengths = {};
  // While it is under way, of the candidates, by model.
  std::vector<std::unique_ptr<const CandidateOutput>> outputs = {};
  int64_t first_slot = 0, memory_start = 0;  // while it is under way
  int64_t source_length() const { return std::ssize(source); }
  kernels::TokenPhrases phrases() const {
    return {phrase_tokens.data(), phrase_lengths.data(), std::ssize(phrase_lengths)};
  }
};

}  // namespace

struct Translator::Impl {
  Impl(std::span<const EnsembleModel> m, const TranslatorOptions& o);
  ~Impl() { memory.stream().synchronize(); }

  Sentence make(std::vector<int32_t> source, const SearchOptions& wish, const std::string& name);
  void check_groups(const SearchOptions& wish, const std::string& name) const;
  int64_t limit_of(int64_t source) const;
  int64_t add(Sentence sentence);
  void step(const OnDone& done);
  void cancel(int64_t ticket);
  void reset();
  int64_t held() const { return std::ssize(waiting) + std::ssize(encoded) + under_way; }

  // Of one step.
  void drop_cancelled(TranslatorMemory::Intake& intake);
  void admit(TranslatorMemory::Intake& intake);
  void read(TranslatorMemory::Intake& intake);
  void begin(TranslatorMemory::Intake& intake);
  bool begin(Sentence& sentence, int64_t place, TranslatorMemory::Intake& intake);
  static void vacate(int64_t place, TranslatorMemory::Intake& intake);
  int64_t close_up(TranslatorMemory::Intake& intake);
  void free(const Sentence& sentence);
  void add_phrases(const SearchOptions& wish, const std::string& name, Sentence& sentence) const;
  void show_wishes(int64_t count);
  void enqueue(const TranslatorMemory::Intake& intake, int64_t places);
  void wait();

  using Plans = std::map<std::tuple<size_t, int64_t, int64_t>, std::unique_ptr<RecordedPlan>>;
  template <class Make>
  RecordedPlan& plan(Plans& plans, size_t number, int64_t size, int64_t bound, const Make& make);

  const std::vector<EnsembleModel> models;
  const TranslatorOptions options;
  const ModelConfig& config;    // of the first; all have the same vocabularies and special ids
  const ParameterStore& store;  // of the first; all have the same device and type
  const bool cuda;
  TranslatorMemory memory;
  Buffer workspace, arena, suppressed;
  Plans encoders, steps;  // by model, size and bound

  std::deque<Sentence> waiting, encoded;
  std::vector<std::optional<Sentence>> places;
  std::vector<Sentence> leaving;  // cancelled, but a step that runs may still write their results
  std::set<int64_t> cancelled;    // tickets of sentences under way
  std::set<int64_t> given_up;     // tickets cancelled by a caller who is being told
  bool telling = false;
  std::vector<CandidatePlaces> shown;          // to steps, by model; empty: without a shortlist
  std::vector<kernels::TokenPhrases> phrases;  // of places; empty: on a GPU
  SlotRanges slots, memory_rows;
  std::vector<int32_t> parts;  // of the result, that are free
  int64_t under_way = 0, next_ticket = 0;
  uint64_t turn = 0;  // of steps
  Event passed[2];
  bool running = false;  // a step is enqueued that nobody has waited for
};

Translator::Impl::Impl(std::span<const EnsembleModel> m, const TranslatorOptions& o)
    : models(m.begin(), m.end()),
      options(checked(o, models)),
      config(models[0].model->config()),
      store(*models[0].store),
      cuda(store.device().is_cuda()),
      memory(models, options, sizes_of(options, cuda)),
      workspace(store.device(), cuda ? kWorkspaceBytes : 0),
      suppressed(store.device(), options.suppressed.size() * sizeof(int32_t)),
      places(static_cast<size_t>(options.sentences)),
      shown(options.shortlist == nullptr ? 0 : models.size(), CandidatePlaces(places.size())),
      phrases(cuda ? 0 : places.size()),
      slots(memory.sizes().slots),
      memory_rows(memory.sizes().memory_rows),
      parts(places.size()),
      passed{Event(store.device()), Event(store.device())} {
  const bool packs = std::ranges::all_of(models, [](auto& each) { return each.store->packs(); });
  if (options.shortlist != nullptr && !packs) {
    refuse(cuda
               ? "a shortlist is for the CPU; leave it out on a GPU, or translate with --device cpu"
               : "a shortlist needs weights that are packed for inference");
  }
  std::iota(parts.begin(), parts.end(), 0);
  copy_to_device(memory.stream(), suppressed.data(), options.suppressed.data(), suppressed.bytes());
  memory.stream().synchronize();
}

int64_t Translator::Impl::limit_of(int64_t source) const {
  const double limit = static_cast<double>(options.length_factor) * static_cast<double>(source);
  const auto most = static_cast<double>(options.max_target);
  return std::max<int64_t>(
      1, static_cast<int64_t>(std::min(most, limit + static_cast<double>(options.length_offset))));
}

Sentence Translator::Impl::make(std::vector<int32_t> source, const SearchOptions& wish,
                                const std::string& name) {
  const ModelConfig& c = config;
  const auto length = std::ssize(source), prefix = std::ssize(wish.prefix);
  if (length < 1 || length > options.max_source) {
    refuse(fmt::format("{} has {} tokens; it must have 1 to {}", name, length, options.max_source));
  }
  for (const int32_t id : source) {
    if (id >= 0 && id < c.vocab_source) continue;
    refuse(fmt::format("{} holds id {}; ids must be in 0 .. {}", name, id, c.vocab_source - 1));
  }
  if (prefix >= options.max_target) {
    refuse(fmt::format("the prefix of {} has {} tokens; it must have fewer than {}", name, prefix,
                       options.max_target));
  }
  for (const int32_t id : wish.prefix) {
    if (id >= 0 && id < c.vocab_target && id != c.eos_id) continue;
    refuse(
        fmt::format("the prefix of {} holds id {}; ids must be in 0 .. {} and not "
                    "end-of-sentence",
                    name, id, c.vocab_target - 1));
  }
  const float penalty = wish.length_penalty.value_or(options.length_penalty);
  if (wish.nbest < 1 || wish.nbest > options.beam || !(penalty >= 0.0f) ||
      !(wish.repetition_penalty > 0.0f) || wish.no_repeat_ngram < 0 || wish.min_length < 0 ||
      wish.max_length < 0) {
    refuse(fmt::format(
        "{}: nbest is {}, length_penalty {}, repetition_penalty {}, no_repeat_ngram {}, min_length "
        "{}, max_length {}: nbest must be in 1 .. {} (the beam), repetition_penalty above 0 and "
        "none of the others negative",
        name, wish.nbest, penalty, wish.repetition_penalty, wish.no_repeat_ngram, wish.min_length,
        wish.max_length, options.beam));
  }
  if (wish.max_length > 0 && wish.min_length > wish.max_length) {
    refuse(fmt::format("{}: min_length is {} and max_length {}; raise the one or lower the other",
                       name, wish.min_length, wish.max_length));
  }
  check_groups(wish, name);
  const int64_t most =
      wish.max_length > 0 ? std::min(wish.max_length, options.max_target) + 1 : limit_of(length);
  const int64_t limit = std::min(options.max_target, prefix + most);
  const int64_t least = std::min(prefix + std::min(wish.min_length, limit), limit - 1);
  const int64_t ngram = std::min(wish.no_repeat_ngram, options.max_target);
  Sentence made{.source = std::move(source),
                .prefix = wish.prefix,
                .search = {.limit = static_cast<int32_t>(limit),
                           .prefix = static_cast<int32_t>(prefix),
                           .wanted = wish.alternatives ? wish.groups : wish.nbest,
                           .length_penalty = penalty,
                           .rules = {.repetition_penalty = wish.repetition_penalty,
                                     .no_repeat_ngram = static_cast<int32_t>(ngram),
                                     .least = static_cast<int32_t>(least)},
                           .groups = wish.groups,
                           .diversity = wish.diversity,
                           .apart = wish.alternatives ? 1 : 0,
                           .drawn = wish.draw ? 1 : 0,
                           .draw = wish.draw.value_or(kernels::TokenDraw{})}};
  if (!wish.phrases.empty()) add_phrases(wish, name, made);
  if (options.shortlist != nullptr) {
    Shortlist::Ids& ids = made.candidates = options.shortlist->candidates(made.source);
    ids.push_back(static_cast<int32_t>(c.eos_id));
    ids.insert(ids.end(), wish.prefix.begin(), wish.prefix.end());
    ids.insert(ids.end(), made.phrase_tokens.begin(), made.phrase_tokens.end());
    std::ranges::sort(ids);
    const auto rest = std::ranges::unique(ids);
    ids.erase(rest.begin(), rest.end());
  }
  return made;
}

// Phrases that hold others stand for these.
void Translator::Impl::add_phrases(const SearchOptions& wish, const std::string& name,
                                   Sentence& sentence) const {
  const ModelConfig& c = config;
  if (cuda) {
    refuse(name +
           " must hold phrases, which is for the CPU; translate with --device cpu, or leave "
           "the phrases out");
  }
  if (wish.groups != 1 || wish.alternatives || wish.draw || wish.no_repeat_ngram > 0) {
    refuse(name +
           " must hold phrases, which goes together neither with groups, alternatives and draws "
           "nor with forbidden n-grams; leave one of them out");
  }
  for (size_t i = 0; i < wish.phrases.size(); ++i) {
    const std::vector<int32_t>& phrase = wish.phrases[i];
    if (phrase.empty()) refuse(fmt::format("phrase {} of {} has no token", i + 1, name));
    for (const int32_t id : phrase) {
      const bool known = id >= 0 && id < c.vocab_target && id != c.eos_id && id != c.pad_id;
      if (known && std::ranges::find(options.suppressed, id) == options.suppressed.end()) continue;
      refuse(
          fmt::format("phrase {} of {} holds id {}; ids must be in 0 .. {}, neither "
                      "end-of-sentence nor padding, and not suppressed",
                      i + 1, name, id, c.vocab_target - 1));
    }
    const auto holds_it = [&](size_t j) {
      const std::vector<int32_t>& other = wish.phrases[j];
      const bool first = other == phrase && j < i;
      return first || (other.size() > phrase.size() && !std::ranges::search(other, phrase).empty());
    };
    bool held = false;
    for (size_t j = 0; j < wish.phrases.size(); ++j) held = held || (j != i && holds_it(j));
    if (held) continue;
    sentence.phrase_tokens.insert(sentence.phrase_tokens.end(), phrase.begin(), phrase.end());
    sentence.phrase_lengths.push_back(static_cast<int32_t>(phrase.size()));
  }
  const int64_t needed = sentence.search.prefix + std::ssize(sentence.phrase_tokens) + 1;
  const int64_t most = wish.max_length > 0 ? int64_t{sentence.search.limit} : options.max_target;
  if (needed > most) {
    refuse(
        fmt::format("{}: prefix and phrases have {} tokens and the translation may have {}; give "
                    "fewer phrases, or a greater length",
                    name, needed - 1, most - 1));
  }
  sentence.search.limit = std::max(sentence.search.limit, static_cast<int32_t>(needed));
}

void Translator::Impl::check_groups(const SearchOptions& wish, const std::string& name) const {
  if (wish.groups < 1 || wish.groups > options.beam || !(wish.diversity >= 0.0f)) {
    refuse(
        fmt::format("{}: groups is {} and diversity {}: groups must be in 1 .. {} (the beam) and "
                    "diversity not negative",
                    name, wish.groups, wish.diversity, options.beam));
  }
  if (!wish.draw) return;
  const kernels::TokenDraw& d = *wish.draw;
  if (!options.sampling) refuse(name + " is to be drawn, but the translator's sampling is off");
  if (!(d.temperature > 0.0f) || d.top_k < 0 || !(d.top_p > 0.0f) || !(d.top_p <= 1.0f)) {
    refuse(
        fmt::format("{}: temperature is {}, top_k {}, top_p {}: temperature must be above 0, top_k "
                    "not negative, top_p above 0 and at most 1",
                    name, d.temperature, d.top_k, d.top_p));
  }
}

int64_t Translator::Impl::add(Sentence sentence) {
  sentence.ticket = next_ticket++;
  waiting.push_back(std::move(sentence));
  return waiting.back().ticket;
}

void Translator::Impl::cancel(int64_t ticket) {
  if (telling) given_up.insert(ticket);
  const auto is = [ticket](const Sentence& s) { return s.ticket == ticket; };
  if (std::erase_if(waiting, is) > 0) return;
  if (const auto found = std::ranges::find_if(encoded, is); found != encoded.end()) {
    memory_rows.give_back(found->memory_start, found->source_length());
    encoded.erase(found);
    return;
  }
  if (std::ranges::any_of(places, [&](const auto& p) { return p && is(*p); }) &&
      cancelled.insert(ticket).second) {
    --under_way;
  }
}

void Translator::Impl::reset() {
  memory.stream().synchronize();
  memory.clear();
  waiting.clear();
  encoded.clear();
  std::ranges::fill(places, std::nullopt);
  leaving.clear();
  cancelled.clear();
  slots.clear();
  memory_rows.clear();
  parts.resize(places.size());
  std::iota(parts.begin(), parts.end(), 0);
  under_way = 0;
  running = false;
}

void Translator::Impl::free(const Sentence& s) {
  slots.give_back(s.first_slot, s.search.limit * options.beam);
  memory_rows.give_back(s.memory_start, s.source_length());
  parts.push_back(s.search.result);
}

// A step that runs while a sentence is cancelled may still end it, so what it has is free one step
// later.
void Translator::Impl::drop_cancelled(TranslatorMemory::Intake& intake) {
  for (const Sentence& s : leaving) free(s);
  leaving.clear();
  for (size_t i = 0; i < places.size() && !cancelled.empty(); ++i) {
    if (!places[i] || cancelled.erase(places[i]->ticket) == 0) continue;
    intake.placements.push_back(
        {.what = kernels::BeamPlacement::What::clear, .to = static_cast<int32_t>(i)});
    leaving.push_back(std::move(*places[i]));
    places[i].reset();
  }
}

// Places are filled as they become free. Sources are encoded ahead, many at a time: a pass of a few
// costs nearly as much, and those under way wait for it.
void Translator::Impl::admit(TranslatorMemory::Intake& intake) {
  begin(intake);
  read(intake);
  begin(intake);
}

// On a GPU, where a pass of few takes as long, sentences for an eighth of the places are always
// ready, and a pass takes as many as it can. On the CPU it takes what a quarter of the places need.
void Translator::Impl::read(TranslatorMemory::Intake& intake) {
  const int64_t all = std::ssize(places);
  if (std::ssize(encoded) >= (cuda ? std::max<int64_t>(1, all / 8) : 1)) return;
  const int64_t most =
      cuda ? all : std::max({int64_t{1}, all / 4, all - under_way - std::ssize(encoded)});
  while (!waiting.empty() && std::ssize(intake.cu) <= most) {
    Sentence& s = waiting.front();
    const int64_t length = s.source_length();
    if (std::ssize(intake.ids) + length > memory.sizes().encoder_rows) return;
    const std::optional<int64_t> rows = memory_rows.take(length);
    if (!rows) return;
    s.memory_start = *rows;
    for (int64_t j = 0; j < length; ++j) {
      intake.ids.push_back(s.source[static_cast<size_t>(j)]);
      intake.positions.push_back(static_cast<int32_t>(j));
      intake.rows.push_back(static_cast<int32_t>(*rows + j));
    }
    intake.cu.push_back(static_cast<int32_t>(intake.ids.size()));
    encoded.push_back(std::move(s));
    waiting.pop_front();
  }
}

void Translator::Impl::begin(TranslatorMemory::Intake& intake) {
  for (size_t place = 0; place < places.size() && !encoded.empty(); ++place) {
    if (places[place]) continue;
    if (!begin(encoded.front(), static_cast<int64_t>(place), intake)) return;
    places[place] = std::move(encoded.front());
    encoded.pop_front();
    ++under_way;
  }
}

// A place that a cancelled sentence leaves in this very intake need not be cleared: it is filled.
void Translator::Impl::vacate(int64_t place, TranslatorMemory::Intake& intake) {
  std::erase_if(intake.placements, [place](const auto& p) { return p.to == place; });
}

bool Translator::Impl::begin(Sentence& s, int64_t place, TranslatorMemory::Intake& intake) {
  if (parts.empty()) return false;
  const std::optional<int64_t> first = slots.take(s.search.limit * options.beam);
  if (!first) return false;
  for (const EnsembleModel& m : models) {
    if (s.candidates.empty()) break;
    s.outputs.push_back(std::make_unique<CandidateOutput>(*m.model, *m.store, s.candidates));
  }
  s.first_slot = *first;
  s.search.result = parts.back();
  parts.pop_back();
  memory.expect(s.search.result);
  vacate(place, intake);
  intake.placements.push_back({.what = kernels::BeamPlacement::What::start,
                               .to = static_cast<int32_t>(place),
                               .first_slot = static_cast<int32_t>(*first),
                               .memory_start = static_cast<int32_t>(s.memory_start),
                               .memory_length = static_cast<int32_t>(s.source_length()),
                               .prefix_at = static_cast<int32_t>(intake.prefixes.size()),
                               .sentence = s.search});
  intake.prefixes.insert(intake.prefixes.end(), s.prefix.begin(), s.prefix.end());
  return true;
}

// Moves sentences from behind into free places, so that a step computes the first ones alone; returns
// how many.
int64_t Translator::Impl::close_up(TranslatorMemory::Intake& intake) {
  // Where weights are not packed: below four rows OpenBLAS sums in another order.
  const int64_t least = store.packs() ? 1 : (3 + options.beam) / options.beam;
  const int64_t count =
      step_size(store.device(), std::ssize(places), under_way, least, options.same_bits);
  size_t to = 0;
  for (auto from = static_cast<size_t>(count); from < places.size(); ++from) {
    if (!places[from]) continue;
    while (places[to]) ++to;
    SAT_ASSERT(static_cast<int64_t>(to) < count);
    vacate(static_cast<int64_t>(to), intake);
    intake.placements.push_back({.what = kernels::BeamPlacement::What::move,
                                 .to = static_cast<int32_t>(to),
                                 .from = static_cast<int32_t>(from)});
    std::swap(places[to], places[from]);
  }
  return count;
}

template <class Make>
RecordedPlan& Translator::Impl::plan(Plans& plans, size_t number, int64_t size, int64_t bound,
                                     const Make& make) {
  std::unique_ptr<RecordedPlan>& found = plans[{number, size, bound}];
  if (found) return *found;
  const TimedPart part("  memory of a plan");
  try {
    found = make();
  } catch (const Error& e) {
    if (e.code() != Errc::out_of_memory || encoders.size() + steps.size() < 2) throw;
    memory.stream().synchronize();  // others can be made again
    for (auto& [key, other] : encoders) other.reset();
    for (auto& [key, other] : steps) other.reset();
    found = make();
  }
  return *found;
}

// What a step finds at its places; one that is left has no sentence, and so neither.
void Translator::Impl::show_wishes(int64_t count) {
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    for (size_t m = 0; m < shown.size(); ++m)
      shown[m].put(i, places[i] ? places[i]->outputs[m].get() : nullptr);
    phrases[i] = places[i] ? places[i]->phrases() : kernels::TokenPhrases{};
  }
}

void Translator::Impl::enqueue(const TranslatorMemory::Intake& intake, int64_t count) {
  const Stream& stream = memory.stream();
  const Device device = stream.device();
  const Context ctx{device, stream.native(), workspace.data(), workspace.bytes()};
  const int64_t rows =
      pass_size(device, memory.sizes().encoder_rows, std::ssize(intake.ids), options.same_bits);
  if (!intake.empty() || rows > 0) memory.take_in(ctx, intake, rows, static_cast<int>(turn % 2));
  for (size_t m = 0; rows > 0 && m < models.size(); ++m) {
    plan(encoders, m, rows, 0, [&] {
      return record_encoder(models, m, memory, options, rows);
    }).run(ctx, arena);
  }
  if (under_way == 0) return;
  int64_t needed = 1;
  for (const std::optional<Sentence>& s : places) {
    if (s) needed = std::max({needed, int64_t{s->search.limit}, s->source_length()});
  }
  const int64_t bound = position_bound(device, std::max(options.max_target, options.max_source),
                                       needed, options.same_bits);
  const StepWishes wishes{.suppressed = {suppressed.as<int32_t>(), std::ssize(options.suppressed)},
                          .candidates = shown,
                          .phrases = cuda ? nullptr : phrases.data()};
  for (size_t m = 0; m < models.size(); ++m) {
    plan(steps, m, count, bound, [&] {
      return record_step(models, m, memory, options, wishes, count, bound);
    }).run(ctx, arena);
  }
}

// The host looks at what the step before has left, so that the device always has one to do.
void Translator::Impl::wait() {
  passed[turn % 2].record(memory.stream());
  if (running || !cuda) passed[cuda ? (turn + 1) % 2 : turn % 2].synchronize();
  running = true;
  ++turn;
}

void Translator::Impl::step(const OnDone& done) {
  telling = false;
  given_up.clear();
  if (held() == 0 && cancelled.empty() && leaving.empty()) return;
  std::vector<std::pair<int64_t, std::vector<Hypothesis>>> ended;
  try {
    use_device(store.device());
    TranslatorMemory::Intake intake;
    drop_cancelled(intake);
    admit(intake);
    const int64_t count = close_up(intake);
    if (!cuda) show_wishes(count);
    enqueue(intake, count);
    wait();
    for (std::optional<Sentence>& s : places) {
      if (!s || cancelled.contains(s->ticket) || !memory.is_done(s->search.result)) continue;
      std::vector<Hypothesis>& found =
          ended
              .emplace_back(s->ticket,
                            memory.result(s->search.result, s->search.prefix,
                                          double{s->search.length_penalty}, s->source_length()))
              .second;
      if (s->search.apart != 0) keep_one_each(found, s->prefix.size());
      free(*s);
      s.reset();
      --under_way;
    }
  } catch (...) {
    reset();
    throw;
  }
  telling = true;
  for (auto& [ticket, found] : ended) {
    if (!given_up.contains(ticket)) done(ticket, std::move(found));
  }
  telling = false;
}

Translator::Translator(const Transformer& model, const ParameterStore& store,
                       const TranslatorOptions& options)
    : Translator(std::array{EnsembleModel{&model, &store}}, options) {}
Translator::Translator(std::span<const EnsembleModel> models, const TranslatorOptions& options)
    : impl_(std::make_unique<Impl>(models, options)) {}
Translator::~Translator() = default;

const TranslatorOptions& Translator::options() const noexcept { return impl_->options; }
int64_t Translator::held() const noexcept { return impl_->held(); }
int64_t Translator::room() const noexcept {
  return std::max<int64_t>(0, std::ssize(impl_->places) - impl_->held());
}

int64_t Translator::add(std::vector<int32_t> source, const SearchOptions& options) {
  return impl_->add(impl_->make(std::move(source), options, "the source"));
}
void Translator::cancel(int64_t ticket) { impl_->cancel(ticket); }
void Translator::step(const OnDone& done) { impl_->step(done); }

std::vector<std::vector<Hypothesis>> Translator::search(
    std::span<const std::vector<int32_t>> sources, const SearchOptions& options) {
  if (held() != 0) {
    refuse(fmt::format("{} sentences are under way; take their results first", held()));
  }
  std::vector<Sentence> sentences;
  for (size_t i = 0; i < sources.size(); ++i) {
    sentences.push_back(impl_->make(sources[i], options, fmt::format("source {}", i)));
  }
  // The longest first: what is left over in the end is short.
  std::vector<size_t> order(sources.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sources[a].size() > sources[b].size(); });
  const int64_t first = impl_->next_ticket;
  for (const size_t i : order) impl_->add(std::move(sentences[i]));
  std::vector<std::vector<Hypothesis>> out(sources.size());
  while (held() > 0) {
    step([&](int64_t ticket, std::vector<Hypothesis> found) {
      out[order[static_cast<size_t>(ticket - first)]] = std::move(found);
    });
  }
  for (const std::vector<Hypothesis>& found : out) {
    if (found.empty()) throw NonFiniteScores(kOp);
  }
  return out;
}

std::vector<std::vector<int32_t>> Translator::translate(
    std::span<const std::vector<int32_t>> sources) {
  std::vector<std::vector<int32_t>> out;
  for (std::vector<Hypothesis>& found : search(sources)) {
    out.push_back(std::move(found.front().ids));
  }
  return out;
}

}  // namespace saturate::model
