// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: everything a run measured, one JSON object a line, in order of step; a validation
// that ran beside training stands behind the rows of the steps it ran beside. The report and the
// TensorBoard files are made from the same rows.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/append_file.h"

namespace saturate::train {

using TextPairs = std::vector<std::pair<std::string, std::string>>;

// The value of what was not measured; null in the file.
inline constexpr double kNotMeasured = std::numeric_limits<double>::quiet_NaN();

struct RunHeader {        // at the start, and again at each resume
  int64_t step = 0;       // steps done before
  std::string started;    // 2026-11-20T23:34:14Z
  TextPairs config;       // key -> value, every key
  TextPairs environment;  // version, device, driver, ...
};

struct TrainRow {
  int64_t step = 0, epoch = 0;
  double elapsed_s = kNotMeasured;  // of training, over all resumes
  double loss = kNotMeasured;       // mean per target token since the last row, natural logarithm
  double learning_rate = kNotMeasured;
  double grad_norm = kNotMeasured;  // before clipping
  double loss_scale = kNotMeasured;
  double target_tokens_per_s = kNotMeasured;
  double data_wait = kNotMeasured;         // share of the time waiting for a batch, 0 to 1
  double device_busy = kNotMeasured;       // share of the time in which a step runs on the GPU
  double flop_utilisation = kNotMeasured;  // model FLOPs over the measured ceiling, 0 to 1
  double memory_bytes = kNotMeasured;      // in use on the device (the process, on a CPU)
};

struct ValidRow {
  int64_t step = 0, epoch = 0;
  double elapsed_s = kNotMeasured;
  double loss = kNotMeasured;  // mean per target token, without label smoothing
  double bleu = kNotMeasured;  // 0 to 100
  double chrf = kNotMeasured;  // 0 to 100
  std::string set{};           // its name; the first set of a step is data.valid
};

struct TestRow {  // the best model on one test set, at the end of the run
  int64_t step = 0;
  std::string set{};                                      // its name
  int64_t model_step = 0;                                 // step of the weights
  double loss = kNotMeasured, perplexity = kNotMeasured;  // as in ValidRow; e to the loss
  double bleu = kNotMeasured, chrf = kNotMeasured;        // 0 to 100
  std::string bleu_signature{}, chrf_signature{};         // sacreBLEU's; empty when not measured
};

struct SampleRow {
  int64_t step = 0, index = 0;  // index of the sentence among those shown
  std::string source, hypothesis, reference;
};

struct RoutingRow {  // of a layer's experts, since the row before
  int64_t step = 0;
  std::string layer{};             // "decoder 3"
  std::vector<double> shares{};    // of all choices, by expert
  double left_out = kNotMeasured;  // second choices not kept at random, of the tokens
  double dropped = kNotMeasured;   // choices for which an expert had no place, of all choices
  double entropy = kNotMeasured;   // of a token's probabilities, over that of equal ones
  double balance = kNotMeasured;   // 1 when the load is even, the number of experts at worst
  double z = kNotMeasured;         // mean square of the logarithm of the sum of exponentials
};

struct RunEnd {
  int64_t step = 0;
  double elapsed_s = kNotMeasured;
  std::string status;  // "finished", "stopped early", "interrupted by SIGTERM", "failed: ..."
  TextPairs results;   // final metrics, for the head of the report
};

using MetricsRow =
    std::variant<RunHeader, TrainRow, ValidRow, SampleRow, RunEnd, TestRow, RoutingRow>;

const char* kind_of(
    const MetricsRow& row) noexcept;  // "run", "train", "valid", "sample", "end", "test", "routing"
int64_t step_of(const MetricsRow& row) noexcept;
// The measurements of a row with their names in the file; numbers that are not finite included.
std::vector<std::pair<const char*, double>> numbers_of(const MetricsRow& row);

// One line without its newline. Ill-formed UTF-8 becomes U+FFFD.
std::string to_json(const MetricsRow& row);

// Rows of a file in order. A last line without newline is what a killed run left; it is ignored.
// Errors    io when the file cannot be read; invalid_argument with file and line for anything else
//           that is not such a row. Unknown keys and unknown kinds are passed over.
std::vector<MetricsRow> read_metrics(const std::filesystem::path& file);

// Not thread-safe: one thread of one rank writes.
class MetricsLog {
 public:
  // A new run: creates or empties the file.
  explicit MetricsLog(const std::filesystem::path& file);
  // A resumed run: first cuts off all from the first row of a step after `resumed_step`, so that no
  // step appears twice. A file that is missing is started anew. Errors as read_metrics.
  MetricsLog(const std::filesystem::path& file, int64_t resumed_step);

  // Appends one line and hands it to the operating system. Error{io} when that fails; nothing of
  // the line is in the file then.
  void write(const MetricsRow& row);
  bool in_place() const noexcept { return out_.in_place(); }

 private:
  AppendFile out_;
};

}  // namespace saturate::train
