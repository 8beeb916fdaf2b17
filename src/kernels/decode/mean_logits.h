// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <array>
#include <cstdint>

#include "kernels/decode/beam_step.h"

namespace saturate::kernels {

constexpr int64_t kMaxModels = 8;  // of an ensemble

// What several models together say of the next token of each hypothesis of a beam_step(): the weighted means of
// their logits and of the logarithms of the sums that go with them.
//
//   mean[r][c]  = sum_m weights[m] logits[m][r][c]
//   log_sums[r] = sum_m weights[m] log sum_c e^logits[m][r][c]
//
// so mean - log_sums is the mean of the models' log-probabilities. The logits are those that the rules of the
// row's sentence leave (token_rules.h): what is forbidden leaves its probability to the rest in each model. With
// one model several times these are its own logits and sum to the last bit, if the weights add up to 1.
//
// Shapes    logits of each model and mean (rows, ld), the first `vocab` columns count, logits changed where rules
//           say so; log_sums (rows). With `columns` rows lie as in beam_step(), in all of them. Of rows that
//           beam_step() extends by no logits (ended, without a score, within the prefix) nothing is written.
// Types     logits in dtype; mean and log_sums in wide_of(dtype); a sum of exponentials in wide_of(dtype), the
//           weighted sums in double.
// Aliasing  mean may be the first model's logits, where these are as wide.
// Stream    enqueued on ctx.stream; grid independent of the state (graph-capturable).
// Order     bitwise equal run to run; a row depends on its own sentence only.
// Errors    invalid_argument for sizes, pointers, beam, models and weights; unsupported when no
//           implementation fits; device.
// Cost      two reads of the logits of open rows, one write of their mean.
// Source    the mean of log-probabilities: Marian's scorers with --weights and OpenNMT-py's ensembles.
struct MeanLogitsArgs {
  std::array<void*, kMaxModels> logits = {};    // of each model
  std::array<double, kMaxModels> weights = {};  // above 0
  int64_t models = 0;
  void* mean = nullptr;
  void* log_sums = nullptr;
  BeamState state;
  const TokenColumns* columns = nullptr;  // (sentences); null: column c is token c. CPU alone
  SuppressedTokens suppressed = {};
  int64_t sentences = 0, beam = 1;  // at most kMaxBeam
  int64_t vocab = 0, ld = 0;
  DType dtype = DType::f32;
  int32_t eos = 0;
  CpuLevel level = CpuLevel::plain;  // the newest that may run on a CPU: cpu_level() or older
};

void mean_logits(const Context& ctx, const MeanLogitsArgs& args);

}  // namespace saturate::kernels
