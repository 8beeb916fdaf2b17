// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>

#include "apps/commands.h"
#include "apps/source_feed.h"
#include "apps/text_io.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timed_part.h"
#include "train/line_translator.h"

namespace saturate::apps {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point t) {
  return std::chrono::duration<double>(Clock::now() - t).count();
}

// Lines that are read ahead, so that batches have sentences of like length to choose from.
constexpr int64_t kAhead = 20000;

std::string farewell;  // what a signal that ends the program leaves on standard error

void say_farewell(int signal_number) {
  static_cast<void>(!write(STDERR_FILENO, farewell.data(), farewell.size()));
  std::signal(signal_number, SIG_DFL);
  std::raise(signal_number);
}

// SIGINT, SIGTERM and SIGHUP end the program as ever, but say where the lines are that were done.
void name_part_at_signals(const std::string& part) {
  if (part.empty()) return;
  farewell = fmt::format("saturate: stopped; what was done before is in {}\n", part);
  for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) {
    if (std::signal(signal_number, say_farewell) == SIG_IGN) std::signal(signal_number, SIG_IGN);
  }
}

// As Moses and Marian write it, lines counted from 0: one feature, the log-probability, and the
// score by which the list is ordered.
std::string nbest_line(int64_t line, const train::Translation& t) {
  return fmt::format("{} ||| {} ||| F0= {:.6f} ||| {:.6f}", line, t.text, t.log_probability,
                     t.score);
}

}  // namespace

int run_translate(const TranslateOptions& o) {
  const auto begin = Clock::now();
  std::optional<train::LoadedModel> model;
  TranslateConfig decode;
  std::optional<SourceFeed> feed;
  std::optional<train::LineTranslator> translator;
  train::LoadHooks hooks;
  hooks.on_text = [&](const train::LoadedModel& m) {
    if (m.config.kind != model::ModelKind::encoder_decoder) {
      throw Error(Errc::invalid_argument, "translate",
                  m.folder + " is a language model; use saturate generate");
    }
    decode = resolve_decoding(o.decode, m.translate);
    if (o.nbest > decode.beam) {
      throw Error(Errc::invalid_argument, "translate",
                  fmt::format("--nbest {} asks for more translations than a beam of {} holds; give "
                              "--beam {}",
                              o.nbest, decode.beam, o.nbest));
    }
    feed.emplace(
        o.input, kAhead,
        [source = m.tokenizers.source, limit = m.config.max_positions](std::string_view line,
                                                                       int64_t number) {
          return train::encode_source(source, limit, line, number);
        },
        o.skip_bad_lines ? OnBadLine::blank : OnBadLine::fail);
  };
  hooks.on_memory = [&](const train::LoadedModel& m) {
    translator.emplace(m, decode, o.nbest);
    if (m.store->device().is_cuda()) translator->warm_up(feed->ready());
  };
  model.emplace(train::load_model(o.model.model, o.model.device, o.model.precision, hooks));
  LineWriter out(o.output);
  name_part_at_signals(out.part());
  const double load = seconds_since(begin);
  const auto loaded = Clock::now();
  int64_t lines = 0;
  auto reported = loaded;
  constexpr double kReportEvery = 10;  // seconds
  for (std::vector<SourceFeed::Ids> sources;
       feed->take(lines, translator->idle(), sources) || !translator->idle();) {
    for (SourceFeed::Ids& ids : sources) translator->add(std::move(ids));
    std::optional<TimedPart> first;
    if (lines == 0 && !translator->idle()) first.emplace("first batch");
    translator->translate_batch([&](std::span<const train::Translation> translations) {
      if (o.nbest == 0) {
        out.write(translations.front().text);
      } else {
        for (const train::Translation& t : translations) out.write(nbest_line(lines, t));
      }
      ++lines;
    });
    out.flush();
    first.reset();
    if (seconds_since(reported) > kReportEvery) {
      log_info(fmt::format("{} lines", lines));
      reported = Clock::now();
    }
  }
  out.close();
  if (feed->bad_lines() > 0)
    log_warning(fmt::format("{} bad lines were written as blank lines", feed->bad_lines()));
  const double work = seconds_since(loaded);
  log_info(fmt::format("{} lines in {:.2f} s ({:.0f} lines/s), model loaded in {:.2f} s", lines,
                       work, static_cast<double>(lines) / std::max(work, 1e-9), load));
  return 0;
}

}  // namespace saturate::apps
