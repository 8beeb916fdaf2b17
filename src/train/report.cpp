// SPDX-License-Identifier: Apache-2.0
#include "train/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/counted.h"
#include "base/durable_file.h"
#include "base/html.h"
#include "base/line_chart.h"
#include "base/text.h"
#include "train/bleu.h"
#include "train/chrf.h"

namespace saturate::train {
namespace {

template <class Row>
ChartSeries series_of(std::string name, const std::vector<Row>& rows, double Row::*member,
                      double scale = 1) {
  ChartSeries s{std::move(name), {}, {}};
  for (const Row& row : rows) {
    s.x.push_back(static_cast<double>(row.step));
    s.y.push_back(row.*member * scale);
  }
  return s;
}

template <class Row>
std::vector<double> finite_values(const std::vector<Row>& rows, double Row::*member) {
  std::vector<double> values;
  for (const Row& row : rows) {
    if (std::isfinite(row.*member)) values.push_back(row.*member);
  }
  return values;
}

double median(std::vector<double> values) {
  if (values.empty()) return kNotMeasured;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

const ValidRow* best_row(const std::vector<ValidRow>& rows, double ValidRow::*member, double sign) {
  const ValidRow* best = nullptr;
  for (const auto& row : rows) {
    if (!std::isfinite(row.*member)) continue;
    if (best == nullptr || sign * (row.*member) > sign * (best->*member)) best = &row;
  }
  return best;
}

std::string card(std::string_view value, std::string_view label) {
  return fmt::format("<div class=\"card\"><b>{}</b><span>{}</span></div>", escape_html(value),
                     escape_html(label));
}

std::string cards(const RunReport& r) {
  std::string html;
  if (r.end) {
    for (const auto& [name, value] : r.end->results) html += card(value, name);
  }
  if (const auto* row = best_row(r.valid, &ValidRow::bleu, 1)) {
    html +=
        card(fmt::format("{:.2f}", row->bleu), fmt::format("best valid BLEU, step {}", row->step));
  }
  if (const auto* row = best_row(r.valid, &ValidRow::chrf, 1)) {
    html +=
        card(fmt::format("{:.2f}", row->chrf), fmt::format("best valid chrF2, step {}", row->step));
  }
  if (const auto* row = best_row(r.valid, &ValidRow::loss, -1)) {
    html += card(fmt::format("{:.3f}", row->loss),
                 fmt::format("best valid loss (perplexity {:.4g}), step {}", std::exp(row->loss),
                             row->step));
  }
  const double rate = median(finite_values(r.train, &TrainRow::target_tokens_per_s));
  if (std::isfinite(rate)) html += card(format_count(rate), "target tokens/s, median");
  const double utilisation = median(finite_values(r.train, &TrainRow::flop_utilisation));
  if (std::isfinite(utilisation)) {
    html += card(fmt::format("{:.1f}%", 100 * utilisation), "model FLOP utilisation, median");
  }
  const double wait = median(finite_values(r.train, &TrainRow::data_wait));
  if (std::isfinite(wait))
    html += card(fmt::format("{:.2f}%", 100 * wait), "waiting for data, median");
  const auto memory = finite_values(r.train, &TrainRow::memory_bytes);
  if (!memory.empty()) {
    html += card(format_bytes(*std::max_element(memory.begin(), memory.end())), "memory, peak");
  }
  return "<section class=\"cards\">" + html + "</section>\n";
}

std::string charts(const RunReport& r) {
  std::vector<double> resumes;
  for (const auto& start : r.starts) {
    if (start.step > 0) resumes.push_back(static_cast<double>(start.step));
  }
  double last_step = 0;  // the same x axis everywhere
  if (!r.train.empty()) last_step = static_cast<double>(r.train.back().step);
  const auto rates = finite_values(r.train, &TrainRow::target_tokens_per_s);
  const bool thousands = !rates.empty() && median(rates) >= 10000;
  std::string html;
  const auto add = [&](std::string title, std::string unit, std::vector<ChartSeries> series,
                       bool from_zero) {
    html += render_chart({.title = std::move(title),
                          .unit = std::move(unit),
                          .series = std::move(series),
                          .marks = resumes,
                          .last_x = last_step,
                          .from_zero = from_zero});
  };
  add("Loss per target token", "",
      {series_of("train", r.train, &TrainRow::loss), series_of("valid", r.valid, &ValidRow::loss)},
      false);
  add("Validation BLEU and chrF2", "",
      {series_of("BLEU", r.valid, &ValidRow::bleu), series_of("chrF2", r.valid, &ValidRow::chrf)},
      false);
  std::map<std::string, std::vector<ValidRow>> further;
  for (const ValidRow& row : r.more_valid) further[row.set].push_back(row);
  for (const auto& [name, rows_of_set] : further) {
    add("Loss per target token, " + name, "", {series_of("valid", rows_of_set, &ValidRow::loss)},
        false);
    add("Validation BLEU and chrF2, " + name, "",
        {series_of("BLEU", rows_of_set, &ValidRow::bleu),
         series_of("chrF2", rows_of_set, &ValidRow::chrf)},
        false);
  }
  add("Target tokens per second", thousands ? "k" : "",
      {series_of("target tokens/s", r.train, &TrainRow::target_tokens_per_s, thousands ? 1e-3 : 1)},
      true);
  add("Model FLOP utilisation", "%",
      {series_of("utilisation", r.train, &TrainRow::flop_utilisation, 100)}, true);
  add("Time waiting for data", "%", {series_of("wait", r.train, &TrainRow::data_wait, 100)}, true);
  add("Memory in use", " GiB", {series_of("memory", r.train, &TrainRow::memory_bytes, 0x1p-30)},
      true);
  add("Learning rate", "", {series_of("learning rate", r.train, &TrainRow::learning_rate)}, true);
  add("Gradient norm before clipping", "", {series_of("norm", r.train, &TrainRow::grad_norm)},
      true);
  return html.empty()
             ? ""
             : "<h2>Over the steps</h2>\n<section class=\"charts\">\n" + html + "</section>\n";
}

// Up to eight earlier versions of a translation, spread over the run.
std::string earlier(const std::vector<const SampleRow*>& versions) {
  constexpr size_t kShown = 8;
  const size_t count = versions.size() - 1;
  if (count == 0) return "";
  std::string html = "<details><summary>earlier</summary><ol>";
  const size_t shown = std::min(count, kShown);
  for (size_t i = 0; i < shown; ++i) {
    const SampleRow& s = *versions[i * count / shown];
    html += fmt::format("<li><i>{}</i>{}</li>", s.step, escape_html(s.hypothesis));
  }
  return html + "</ol></details>";
}

std::string samples(const RunReport& r) {
  std::map<int64_t, std::vector<const SampleRow*>> by_index;
  for (const auto& s : r.samples) by_index[s.index].push_back(&s);
  if (by_index.empty()) return "";
  std::string html =
      "<h2>Sample translations</h2>\n<div class=\"box\"><table "
      "class=\"samples\"><thead><tr><th>Source</th>"
      "<th>Hypothesis</th><th>Reference</th></tr></thead><tbody>\n";
  for (const auto& [index, versions] : by_index) {
    const SampleRow& last = *versions.back();
    html +=
        fmt::format("<tr><td>{}</td><td>{}{}</td><td>{}</td></tr>\n", escape_html(last.source),
                    escape_html(last.hypothesis), earlier(versions), escape_html(last.reference));
  }
  return html + "</tbody></table></div>\n";
}

std::string test_table(const RunReport& r) {
  if (r.tests.empty()) return "";
  std::map<std::string, const TestRow*> last;  // a run that went on is tested again
  for (const TestRow& row : r.tests) last[row.set] = &row;
  const auto number = [](double value, int digits) {
    return std::isfinite(value) ? fmt::format("{:.{}f}", value, digits) : std::string("-");
  };
  std::string html =
      "<h2>Test sets, by the best model</h2>\n<div class=\"box\"><table><thead><tr><th>Set</th>"
      "<th>BLEU</th><th>chrF2</th><th>Loss</th><th>Perplexity</th><th>Step</th></tr></thead>"
      "<tbody>\n";
  for (const auto& [name, row] : last) {
    html +=
        fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                    escape_html(name), number(row->bleu, 2), number(row->chrf, 2),
                    number(row->loss, 4), number(row->perplexity, 2), row->model_step);
  }
  return html + "</tbody></table></div>\n";
}

// Over the equal share of each expert.
double busiest(const RoutingRow& r) {
  return r.shares.empty()
             ? kNotMeasured
             : *std::ranges::max_element(r.shares) * static_cast<double>(r.shares.size());
}

std::string routing_charts(const RunReport& r) {
  ChartSeries mean{"mean of layers", {}, {}}, worst{"worst layer", {}, {}};
  ChartSeries dropped{"dropped", {}, {}}, entropy{"entropy", {}, {}};
  for (size_t i = 0; i < r.routing.size();) {
    const size_t first = i;
    double sum = 0, most = 0, lost = 0, spread = 0;
    for (; i < r.routing.size() && r.routing[i].step == r.routing[first].step; ++i) {
      sum += busiest(r.routing[i]);
      most = std::fmax(most, busiest(r.routing[i]));
      lost += r.routing[i].dropped;
      spread += r.routing[i].entropy;
    }
    const double layers = static_cast<double>(i - first);
    for (const auto& [series, value] :
         {std::pair{&mean, sum / layers}, std::pair{&worst, most},
          std::pair{&dropped, 100 * lost / layers}, std::pair{&entropy, 100 * spread / layers}}) {
      series->x.push_back(static_cast<double>(r.routing[first].step));
      series->y.push_back(value);
    }
  }
  const auto chart = [](const char* title, const char* unit, std::vector<ChartSeries> series) {
    return render_chart({.title = title,
                         .unit = unit,
                         .series = std::move(series),
                         .marks = {},
                         .from_zero = true});
  };
  return chart("Load of the busiest expert, over its equal share", "", {mean, worst}) +
         chart("Choices without a place at their expert", "%", {dropped}) +
         chart("Entropy of routing, of equal probabilities", "%", {entropy});
}

// What each expert of each layer computed between the last two validations.
std::string routing(const RunReport& r) {
  if (r.routing.empty()) return "";
  const int64_t step = r.routing.back().step;
  std::string rows;
  size_t experts = 0;
  for (const RoutingRow& row : r.routing) {
    if (row.step != step) continue;
    experts = row.shares.size();
    rows += "<tr><th>" + escape_html(row.layer) + "</th>";
    for (const double share : row.shares) {
      // Twice the equal share is the full colour.
      const double tint = std::clamp(share * static_cast<double>(experts) / 2, 0.0, 1.0);
      rows += fmt::format("<td style=\"background:rgba(64,128,224,{:.2f})\">{:.1f}</td>",
                          0.6 * tint, 100 * share);
    }
    rows += fmt::format("<td>{:.1f}</td><td>{:.1f}</td><td>{:.0f}</td><td>{:.3f}</td></tr>\n",
                        100 * row.dropped, 100 * row.left_out, 100 * row.entropy, row.balance);
  }
  std::string names;
  for (size_t e = 0; e < experts; ++e) names += fmt::format("<th>{}</th>", e);
  return fmt::format(
      "<h2>Experts</h2>\n<section class=\"charts\">\n{}</section>\n<div class=\"box\"><p>Share of "
      "the tokens' choices that each expert got up to step {}, in per cent.</p><table><thead><tr>"
      "<th>Layer</th>{}<th>Dropped</th><th>Left out</th><th>Entropy</th><th>Balance</th></tr>"
      "</thead><tbody>\n{}</tbody></table></div>\n",
      routing_charts(r), step, names, rows);
}

std::string pairs_table(const char* title, const TextPairs& pairs) {
  if (pairs.empty()) return "";
  std::string rows;
  for (const auto& [name, value] : pairs) {
    rows += fmt::format("<tr><th>{}</th><td>{}</td></tr>", escape_html(name), escape_html(value));
  }
  return fmt::format(
      "<details class=\"box\" open><summary>{}</summary><table "
      "class=\"pairs\"><tbody>{}</tbody></table></details>\n",
      title, rows);
}

std::string head(const RunReport& r) {
  const std::string status = r.end ? r.end->status : "not finished";
  int64_t step = 0, epoch = 0;
  double elapsed = kNotMeasured;
  const auto note = [&](int64_t row_step, double row_elapsed) {
    step = std::max(step, row_step);
    if (std::isfinite(row_elapsed)) elapsed = std::fmax(elapsed, row_elapsed);
  };
  for (const auto& row : r.train) {
    note(row.step, row.elapsed_s);
    epoch = std::max(epoch, row.epoch);
  }
  for (const auto& row : r.valid) note(row.step, row.elapsed_s);
  if (r.end) note(r.end->step, r.end->elapsed_s);

  std::string sub = fmt::format("{}, epoch {}", counted(step, "step"), epoch);
  if (std::isfinite(elapsed)) sub += ", " + format_duration(elapsed) + " of training";
  if (!r.starts.empty()) sub += ", started " + r.starts.front().started;
  if (r.starts.size() > 1) sub += fmt::format(", resumed {}x", r.starts.size() - 1);
  return fmt::format(
      "<header><h1>{}<span class=\"pill{}\">{}</span></h1><p class=\"sub\">{}</p></header>\n",
      escape_html(r.name), status == "finished" ? " done" : "", escape_html(status),
      escape_html(sub));
}

}  // namespace

RunReport make_run_report(std::string name, std::span<const MetricsRow> rows) {
  RunReport r;
  r.name = std::move(name);
  for (const MetricsRow& row : rows) {
    if (const auto* header = std::get_if<RunHeader>(&row)) {
      r.starts.push_back(*header);
      r.end.reset();  // it goes on
    } else if (const auto* train = std::get_if<TrainRow>(&row)) {
      r.train.push_back(*train);
    } else if (const auto* valid = std::get_if<ValidRow>(&row)) {
      const bool first = r.valid.empty() || r.valid.back().step != valid->step;
      (first ? r.valid : r.more_valid).push_back(*valid);
    } else if (const auto* test = std::get_if<TestRow>(&row)) {
      r.tests.push_back(*test);
    } else if (const auto* sample = std::get_if<SampleRow>(&row)) {
      r.samples.push_back(*sample);
    } else if (const auto* of_layer = std::get_if<RoutingRow>(&row)) {
      r.routing.push_back(*of_layer);
    } else {
      r.end = std::get<RunEnd>(row);
    }
  }
  return r;
}

std::string render_report(const RunReport& r) {
  const bool scored =
      best_row(r.valid, &ValidRow::bleu, 1) || best_row(r.valid, &ValidRow::chrf, 1) ||
      std::ranges::any_of(r.tests, [](const TestRow& t) { return std::isfinite(t.bleu); });
  std::string html = head(r) + cards(r) + test_table(r) + charts(r) + routing(r) + samples(r);
  if (!r.starts.empty()) {
    const std::string tables = pairs_table("Environment", r.starts.back().environment) +
                               pairs_table("Configuration", r.starts.back().config);
    if (!tables.empty()) html += "<h2>How it was run</h2>\n" + tables;
  }
  html += "<footer>Made by Saturate from metrics.jsonl.";
  if (scored) {
    html += fmt::format(" Scores equal those of sacreBLEU: BLEU {}, chrF2 {}.", kBleuSignature,
                        kChrfSignature);
  }
  return html_page(r.name + " - Saturate run", html + "</footer>\n", PageScript::charts);
}

std::filesystem::path write_report(const std::filesystem::path& run_folder) {
  const auto folder = std::filesystem::absolute(run_folder).lexically_normal();
  const auto name = folder.filename().empty() ? folder.parent_path().filename() : folder.filename();
  const auto rows = read_metrics(run_folder / "metrics.jsonl");
  const auto page = run_folder / "report.html";
  write_durable_file(page.string(), render_report(make_run_report(name.string(), rows)));
  return page;
}

}  // namespace saturate::train
