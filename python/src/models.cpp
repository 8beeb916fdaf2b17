// SPDX-License-Identifier: Apache-2.0
// Model folders for Python: the engines of `saturate serve`, asked without HTTP.
#include "models.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <map>
#include <optional>
#include <random>
#include <tuple>

#include "base/error.h"
#include "base/log.h"
#include "requests.h"
#include "train/ensemble.h"
#include "train/translation.h"

namespace nb = nanobind;

namespace saturate::python {
namespace {

using Lines = std::vector<std::string>;
using serve::GenerationEngine;
using serve::TranslationEngine;

// Whoever calls has the whole text in memory already, so nothing is refused.
constexpr int64_t kQueue = int64_t{1} << 40;

[[noreturn]] void refuse(const char* op, const std::string& what) {
  throw Error(Errc::invalid_argument, op, what);
}

/// A loaded model and its engines, made when they are first asked: for translation one a beam, since
/// its width decides the memory that is planned; they share the weights. From any thread.
class Model {
 public:
  Model(const Lines& folders, const std::vector<double>& weights, const std::string& device,
        const std::string& precision, const std::string& adapter, bool ids,
        const GenerationEngine::Options& generation)
      : loaded_(load(folders, weights, device, precision, adapter, hooks(ids))),
        folders_(folders_of(loaded_)),
        weights_(train::ensemble_weights(loaded_)),
        weight_bytes_(train::weight_bytes(loaded_)),
        generation_options_(generation),
        process_(::getpid()) {}
  ~Model() {
    if (::getpid() != process_) {  // a fork: the threads to join are in the parent
      static_cast<void>(new Engines(std::move(engines_)));
      static_cast<void>(new train::LoadedModel(std::move(loaded_)));
    }
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  std::shared_ptr<Request> translate(const Lines& lines, std::optional<int64_t> beam,
                                     model::SearchOptions search,
                                     const std::optional<Lines>& prefixes,
                                     std::shared_ptr<Mailbox> mailbox) {
    if (loaded_.config.kind != model::ModelKind::encoder_decoder)
      refuse("translate", loaded_.folder + " is a language model; use generate()");
    const int64_t width = beam.value_or(loaded_.translate.beam);
    if (width < 1 || width > 64) refuse("translate", fmt::format("beam is {}; 1 .. 64", width));
    if (search.nbest < 1 || search.nbest > width) {
      refuse("translate",
             fmt::format("nbest is {}; it must be in 1 .. beam ({})", search.nbest, width));
    }
    const std::shared_ptr<TranslationEngine> engine = translation(width);
    serve::TranslationJob job;
    job.search = std::move(search);
    for (size_t i = 0; i < lines.size(); ++i) {
      try {
        job.sources.push_back(engine->encode(lines[i]));
      } catch (const Error& e) {
        throw Error(e.code(), "translate", fmt::format("texts[{}]: {}", i, e.what()));
      }
    }
    if (prefixes) {
      for (const std::string& prefix : *prefixes)
        loaded_.tokenizers.target.encode(prefix, job.prefixes.emplace_back());
    }
    const auto request = std::make_shared<Request>(std::move(mailbox));
    if (job.sources.empty()) {
      request->translated({});
      return request;
    }
    job.cancelled = [request] { return request->cancelled(); };
    job.done = [request](serve::TranslationJob::Lines found) {
      request->translated(std::move(found));
    };
    job.failed = [request](Errc, const std::string& why) { request->failed(why); };
    accept(engine->submit(std::move(job)), "translate");
    return request;
  }

  std::shared_ptr<Request> generate(const Lines& prompts, const model::SamplingOptions& sampling,
                                    std::optional<uint64_t> seed, const Lines& stops,
                                    bool keep_pieces, std::shared_ptr<Mailbox> mailbox) {
    if (loaded_.config.kind != model::ModelKind::decoder_only)
      refuse("generate", loaded_.folder + " translates; use translate()");
    const std::shared_ptr<GenerationEngine> engine = generation();
    const data::Tokenizer& tokenizer = loaded_.tokenizers.target;
    serve::GenerationJob job;
    job.sampling = sampling;
    job.sampling.seed = seed ? *seed : std::random_device{}();
    std::vector<Generated> texts;
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::vector<int32_t>& ids = job.prompts.emplace_back();
      tokenizer.encode(prompts[i], ids);
      if (ids.empty()) ids.push_back(tokenizer.eos_id());  // what stands before every document
      const int64_t room = engine->max_length() - std::ssize(ids);
      if (room < 1) {
        refuse("generate",
               fmt::format("prompts[{}] has {} tokens, and prompt and continuation together may "
                           "have {}; shorten it, or load with a larger max_length",
                           i, ids.size(), engine->max_length()));
      }
      texts.push_back({.stream = serve::GeneratedText(tokenizer, ids, stops),
                       .limit = std::min(sampling.max_tokens, room)});
    }
    const auto request = std::make_shared<Request>(std::move(mailbox));
    request->expect(std::move(texts), keep_pieces);
    if (job.prompts.empty()) {
      request->generated();
      return request;
    }
    job.cancelled = [request] { return request->cancelled(); };
    job.token = [request](size_t text, int32_t id, float) { return request->token(text, id); };
    job.done = [request] { request->generated(); };
    job.failed = [request](const std::string& why) { request->failed(why); };
    accept(engine->submit(std::move(job)), "generate");
    return request;
  }

  // One pass over each text; nothing is added to it.
  std::shared_ptr<Request> score(const Lines& lines, int64_t likeliest,
                                 std::shared_ptr<Mailbox> mailbox) {
    if (loaded_.config.kind != model::ModelKind::decoder_only)
      refuse("score", loaded_.folder + " translates; saturate eval --score scores translations");
    const std::shared_ptr<GenerationEngine> engine = generation();
    const data::Tokenizer& tokenizer = loaded_.tokenizers.target;
    serve::GenerationJob job;
    job.sampling.max_tokens = 0;
    std::vector<Generated> texts;
    for (size_t i = 0; i < lines.size(); ++i) {
      std::vector<int32_t>& ids = job.prompts.emplace_back();
      tokenizer.encode(lines[i], ids);
      if (ids.empty()) refuse("score", fmt::format("texts[{}] has no tokens", i));
      if (std::ssize(ids) > engine->max_length()) {
        refuse("score",
               fmt::format("texts[{}] has {} tokens, and {} are taken; shorten it, or load "
                           "with a larger max_length",
                           i, ids.size(), engine->max_length()));
      }
      texts.push_back({.stream = serve::GeneratedText(tokenizer, ids, {}), .limit = 0});
    }
    const auto request = std::make_shared<Request>(std::move(mailbox));
    request->expect(std::move(texts), false);
    if (job.prompts.empty()) {
      request->generated();
      return request;
    }
    job.scores = serve::GenerationJob::Scores{.of_prompts = true, .likeliest = likeliest};
    job.cancelled = [request] { return request->cancelled(); };
    job.scored = [request, tokenizer](size_t text, std::span<const int32_t> ids, auto scores) {
      request->scored(text, ids, serve::scored_tokens(tokenizer, ids, 0, scores));
    };
    job.done = [request] { request->generated(); };
    job.failed = [request](const std::string& why) { request->failed(why); };
    accept(engine->submit(std::move(job)), "score");
    return request;
  }

  // Ends the threads and gives the memory back; what is under way fails.
  void close() {
    check_process();
    Engines engines;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      std::swap(engines, engines_);
    }
    engines = {};
    const std::lock_guard lock(mutex_);
    loaded_.transformer.reset();
    loaded_.store.reset();
    loaded_.others.clear();
    weight_bytes_ = 0;
  }

  const train::LoadedModel& loaded() const noexcept { return loaded_; }
  const Lines& folders() const noexcept { return folders_; }
  const std::vector<double>& weights() const noexcept { return weights_; }
  size_t weight_bytes() const {
    const std::lock_guard lock(mutex_);
    return weight_bytes_;
  }
  Lines pieces(const std::vector<int32_t>& ids) const {
    Lines out;
    for (const int32_t id : ids) out.push_back(loaded_.tokenizers.target.piece(id));
    return out;
  }

 private:
  struct Engines {
    std::map<int64_t, std::shared_ptr<TranslationEngine>> translation;  // by beam
    std::shared_ptr<GenerationEngine> generation;
  };

  std::shared_ptr<TranslationEngine> translation(int64_t beam) {
    const std::lock_guard lock(mutex_);
    check_open("translate");
    std::shared_ptr<TranslationEngine>& engine = engines_.translation[beam];
    if (!engine) {
      TranslateConfig decode = loaded_.translate;
      decode.beam = beam;
      engine = std::make_shared<TranslationEngine>(
          loaded_, decode, kQueue, train::LineOptions{.same_bits = generation_options_.same_bits});
    }
    return engine;
  }
  std::shared_ptr<GenerationEngine> generation() {
    const std::lock_guard lock(mutex_);
    check_open("generate");
    if (!engines_.generation)
      engines_.generation = std::make_shared<GenerationEngine>(loaded_, generation_options_);
    return engines_.generation;
  }

  void check_process() const {
    if (::getpid() == process_) return;
    throw Error(Errc::unsupported, "load",
                "this process was forked after the model was loaded, and has none of its threads; "
                "load the model here, or start processes by spawn");
  }
  void check_open(const char* op) const {
    check_process();
    if (closed_) refuse(op, "the model was closed; load it again");
  }
  static train::LoadedModel load(const Lines& folders, const std::vector<double>& weights,
                                 const std::string& device, const std::string& precision,
                                 const std::string& adapter, const train::LoadHooks& hooks) {
    if (folders.size() == 1 && weights.size() <= 1)
      return train::load_model(folders[0], device, precision, hooks, adapter);
    if (!adapter.empty()) {
      refuse(
          "load",
          "adapter is for one model; of several, give the adapter's folder itself among them (it "
          "names its base), or saturate merge both first");
    }
    return train::load_ensemble(folders, weights, device, precision, hooks);
  }
  static Lines folders_of(const train::LoadedModel& m) {
    Lines all{m.folder};
    for (const train::LoadedModel& other : m.others) all.push_back(other.folder);
    return all;
  }
  static train::LoadHooks hooks(bool ids) {
    train::LoadHooks hooks;
    hooks.ids = ids;
    return hooks;
  }
  static void accept(serve::Admission admission, const char* op) {
    if (admission == serve::Admission::accepted) return;
    throw Error(Errc::device, op,
                "the model failed twice in a row, as standard error says, and takes no more; load "
                "it again");
  }

  train::LoadedModel loaded_;
  const Lines folders_;  // of each model, as is what each counts
  const std::vector<double> weights_;
  size_t weight_bytes_;  // by the mutex
  const GenerationEngine::Options generation_options_;
  const pid_t process_;
  mutable std::mutex mutex_;  // of what follows
  Engines engines_;
  bool closed_ = false;
};

using TranslationTuple =
    std::tuple<std::string, double, double, std::vector<int32_t>, std::vector<double>>;

std::vector<std::vector<TranslationTuple>> translations(const Request& request) {
  std::vector<std::vector<TranslationTuple>> out;
  for (const auto& best : request.lines()) {
    std::vector<TranslationTuple>& list = out.emplace_back();
    for (const train::Translation& t : best)
      list.emplace_back(t.text, t.score, t.log_probability, t.ids, t.token_log_probabilities);
  }
  return out;
}

// Text may end within a character where the last token does: U+FFFD stands for it.
nb::str text_of(const std::string& bytes) {
  PyObject* text =
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), "replace");
  if (text == nullptr) throw nb::python_error();
  return nb::steal<nb::str>(text);
}

nb::list generations(const Request& request) {
  nb::list out;
  for (const Generated& g : request.texts())
    out.append(nb::make_tuple(text_of(g.text), g.ids, g.ending));
  return out;
}

// Of each text: its tokens, ids, log-probabilities (None of the first) and what else was likely.
nb::list scores(const Request& request) {
  nb::list out;
  for (const Generated& g : request.texts()) {
    nb::list tokens, each, likeliest;
    for (const serve::ScoredToken& t : g.scores) {
      tokens.append(text_of(t.token.text));
      each.append(t.first ? nb::none() : nb::cast(t.log_probability));
      nb::list others;
      for (const auto& [token, log_probability] : t.likeliest)
        others.append(nb::make_tuple(text_of(token.text), log_probability));
      likeliest.append(nb::tuple(others));
    }
    out.append(nb::make_tuple(tokens, g.ids, each, likeliest));
  }
  return out;
}

nb::list take_pieces(Request& request) {
  nb::list out;
  for (const Piece& p : request.take_pieces()) out.append(nb::make_tuple(p.text, text_of(p.shown)));
  return out;
}

}  // namespace

void bind_models(nb::module_& m) {
  set_log_level(LogLevel::warning);
  using Unlocked = nb::call_guard<nb::gil_scoped_release>;
  nb::class_<Mailbox>(m, "Mailbox")
      .def(nb::new_([] { return std::make_shared<Mailbox>(); }))
      .def_prop_ro("descriptor", &Mailbox::descriptor)
      .def("take", &Mailbox::take);
  nb::class_<Request>(m, "Request")
      .def("wait", &Request::wait, nb::arg("seconds"), nb::arg("any_piece"), Unlocked())
      .def_prop_ro("finished", &Request::finished)
      .def_prop_ro("error", &Request::error)
      .def_prop_ro("number", &Request::number)
      .def("cancel", &Request::cancel)
      .def("take_pieces", &take_pieces)
      .def("translations", &translations)
      .def("generations", &generations)
      .def("scores", &scores);
  nb::class_<Model>(m, "Model")
      .def(
          "__init__",
          [](Model* self, const Lines& folders, const std::vector<double>& weights,
             const std::string& device, const std::string& precision, const std::string& adapter,
             bool ids, bool same_bits, int64_t sequences, int64_t max_length) {
            new (self) Model(folders, weights, device, precision, adapter, ids,
                             {.queue = kQueue,
                              .sequences = sequences,
                              .same_bits = same_bits,
                              .max_length = max_length});
          },
          nb::arg("folders"), nb::kw_only(), nb::arg("weights"), nb::arg("device"),
          nb::arg("precision"), nb::arg("adapter"), nb::arg("ids"), nb::arg("same_bits"),
          nb::arg("sequences"), nb::arg("max_length"), Unlocked())
      .def(
          "translate",
          [](Model& self, const Lines& texts, std::optional<int64_t> beam, int nbest,
             std::optional<float> length_penalty, const std::optional<Lines>& prefixes,
             float repetition_penalty, int64_t no_repeat_ngram, int64_t min_length,
             int64_t max_length, std::shared_ptr<Mailbox> mailbox) {
            return self.translate(texts, beam,
                                  {.nbest = nbest,
                                   .length_penalty = length_penalty,
                                   .repetition_penalty = repetition_penalty,
                                   .no_repeat_ngram = no_repeat_ngram,
                                   .min_length = min_length,
                                   .max_length = max_length},
                                  prefixes, std::move(mailbox));
          },
          nb::arg("texts"), nb::kw_only(), nb::arg("beam").none(), nb::arg("nbest"),
          nb::arg("length_penalty").none(), nb::arg("prefixes").none(),
          nb::arg("repetition_penalty"), nb::arg("no_repeat_ngram"), nb::arg("min_length"),
          nb::arg("max_length"), nb::arg("mailbox").none(), Unlocked())
      .def(
          "generate",
          [](Model& self, const Lines& prompts, int64_t max_tokens, float temperature,
             int64_t top_k, float top_p, float min_p, std::optional<uint64_t> seed,
             const Lines& stop, float repetition_penalty, float presence_penalty,
             float frequency_penalty, int64_t no_repeat_ngram, int64_t min_tokens, bool keep_pieces,
             std::shared_ptr<Mailbox> mailbox) {
            return self.generate(prompts,
                                 {.temperature = temperature,
                                  .top_k = top_k,
                                  .top_p = top_p,
                                  .min_p = min_p,
                                  .max_tokens = max_tokens,
                                  .repetition_penalty = repetition_penalty,
                                  .presence_penalty = presence_penalty,
                                  .frequency_penalty = frequency_penalty,
                                  .no_repeat_ngram = no_repeat_ngram,
                                  .min_tokens = min_tokens},
                                 seed, stop, keep_pieces, std::move(mailbox));
          },
          nb::arg("prompts"), nb::kw_only(), nb::arg("max_tokens"), nb::arg("temperature"),
          nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("seed").none(),
          nb::arg("stop"), nb::arg("repetition_penalty"), nb::arg("presence_penalty"),
          nb::arg("frequency_penalty"), nb::arg("no_repeat_ngram"), nb::arg("min_tokens"),
          nb::arg("keep_pieces"), nb::arg("mailbox").none(), Unlocked())
      .def("score", &Model::score, nb::arg("texts"), nb::kw_only(), nb::arg("likeliest"),
           nb::arg("mailbox").none(), Unlocked())
      .def("close", &Model::close, Unlocked())
      .def("pieces", &Model::pieces, nb::arg("ids"))
      .def_prop_ro("folders", &Model::folders)
      .def_prop_ro("weights", &Model::weights)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("beam", [](const Model& self) { return self.loaded().translate.beam; })
      .def_prop_ro("kind", [](const Model& self) {
        const bool translates = self.loaded().config.kind == model::ModelKind::encoder_decoder;
        return translates ? "translation" : "language";
      });
}

}  // namespace saturate::python
