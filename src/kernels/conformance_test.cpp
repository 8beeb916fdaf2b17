// SPDX-License-Identifier: Apache-2.0
// What the contract of every operation promises alike, on every device and type: the same bits when it runs again, every
// element of a result written, nothing written beside it, inputs left alone. An operation without an entry here fails.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/activation/activation.h"
#include "kernels/adapters/keep_columns.h"
#include "kernels/attention/attention.h"
#include "kernels/block_scaled/block_scaled.h"
#include "kernels/compression/compression.h"
#include "kernels/conv/conv2d.h"
#include "kernels/decode/beam_place.h"
#include "kernels/decode/beam_step.h"
#include "kernels/decode/cached_attention.h"
#include "kernels/decode/mean_logits.h"
#include "kernels/decode/memory_weights.h"
#include "kernels/decode/sample_step.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/experts/expert_rows.h"
#include "kernels/experts/routing.h"
#include "kernels/fp8/fp8.h"
#include "kernels/gemm/grouped/grouped_gemm.h"
#include "kernels/gemm/matmul.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/nf4/nf4.h"
#include "kernels/norm/norm.h"
#include "kernels/optimizer/adafactor.h"
#include "kernels/optimizer/muon.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/relative_bias/relative_bias.h"
#include "kernels/rotary/rotary.h"
#include "kernels/testing/call.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Call;
using testing::Target;
using testing::Values;

constexpr int64_t kRows = 7, kCols = 36, kVocab = 11;

ActivationArgs activation_args(Call& c) {
  return {.kind = ActivationKind::silu,
          .gated = true,
          .x = c.in(kRows * 2 * kCols),
          .rows = kRows,
          .cols = kCols,
          .dtype = c.dtype,
          .dropout = Call::kDropout,
          .rng = c.rng()};
}
EmbeddingArgs embedding_args(Call& c) {
  return {.table = c.in(kVocab * kCols),
          .position_table = c.wide_in(4 * kCols),
          .ids = c.ints({3, 1, 3, 0, 2, 10, 0}),
          .positions = c.ints({0, 1, 2, 0, 1, 2, 0}),
          .rows = kRows,
          .cols = kCols,
          .vocab = kVocab,
          .max_positions = 4,
          .dtype = c.dtype,
          .scale = 1.5f,
          .dropout = Call::kDropout,
          .rng = c.rng()};
}
Conv2dArgs conv_args(Call& c) {
  Conv2dArgs a{.x = c.in(2 * 6 * 5 * 3),
               .w = c.in(4 * 3 * 2 * 3),
               .bias = c.in(4),
               .batch = 2,
               .height = 6,
               .width = 5,
               .channels = 3,
               .filters = 4,
               .filter_height = 3,
               .filter_width = 2,
               .dtype = c.dtype};
  a.vertical = {.stride = 2, .padding = 1, .dilation = 1};
  return a;
}
int64_t outputs_of(const Conv2dArgs& a) {
  return a.batch * a.output_height() * a.output_width() * a.filters;
}
// Two sequences of three and four tokens, two heads on one key head.
AttentionArgs attention_args(Call& c, const void* o, const void* lse) {
  constexpr int64_t kSize = 32, kWidth = 4 * kSize;
  const auto* qkv = static_cast<const char*>(c.in(kRows * kWidth));
  const auto at = [&](int64_t head) {
    return qkv + head * kSize * static_cast<int64_t>(size_of(c.dtype));
  };
  const int32_t* cu = c.ints({0, 3, 7});
  return {.q = at(0),
          .k = at(2),
          .v = at(3),
          .o = const_cast<void*>(o),
          .lse = const_cast<void*>(lse),
          .cu_q = cu,
          .cu_k = cu,
          .sequences = 2,
          .heads = 2,
          .kv_heads = 1,
          .head_size = kSize,
          .q_rows = kRows,
          .k_rows = kRows,
          .max_q = 4,
          .max_k = 4,
          .q_stride = kWidth,
          .k_stride = kWidth,
          .v_stride = kWidth,
          .o_stride = 2 * kSize,
          .dtype = c.dtype,
          .causal = true,
          .scale = 0.2f,
          .dropout = Call::kDropout,
          .rng = c.rng()};
}
// Two choices of five experts; of the seven rows six hold tokens, and slots name all of twelve rows.
RouteTokensArgs route_args(Call& c) {
  return {.logits = c.wide_in(kRows * 5),
          .valid = c.ints({6}),
          .rows = kRows,
          .experts = 5,
          .k = 2,
          .dtype = c.dtype,
          .random_second = true,
          .rng = c.rng()};
}
const Values kChoices = {0, 3, 1, 0, 4, 0, 0, 1, 2, -1, 3, 0, -1, -1};
const Values kSlots = {0, 5, 6, 1, 11, 2, 3, 7, 8, 9, 10, 4, -1, -1};

StepState state_of_a_step() {
  StepState s;
  s.rng[0] = 99, s.rng[1] = 4, s.totals[0] = 3, s.totals[2] = 5, s.grad_square_sum = 2;
  return s;
}

// A matrix of two pieces and a vector, for one of the three calls of a step.
enum class AdafactorCall { sums, measure, apply };
AdafactorArgs adafactor_args(Call& c, AdafactorCall call) {
  struct Tables {
    AdafactorTensor tensors[2];
    AdafactorPiece pieces[3];
  };
  constexpr int64_t kCount = 40 * 24 + 50, kFactors = 40 + 24 + 50;
  Tables tables{
      .tensors = {{.rows = 40, .cols = 24, .begin = 0, .end = 960},
                  {.cols = 50, .begin = 0, .end = 50, .master = 960, .grad = 960, .factors = 64}},
      .pieces = {}};
  AdafactorArgs a{.tensor_count = 2,
                  .piece_count = 3,
                  .factor_count = kFactors,
                  .widest = 24,
                  .weight_decay = 0.1f,
                  .clip_norm = 1.0f,
                  .ema_decay = 0.9f,
                  .schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.1f},
                  .state = c.in_object(state_of_a_step())};
  std::ranges::copy(adafactor_pieces(tables.tensors, a.partial_count), tables.pieces);
  const Tables* const held = c.in_object(tables);
  a.tensors = held->tensors;
  a.pieces = held->pieces;
  const auto read = [](const void* p) { return const_cast<void*>(p); };  // by this call alone
  const auto values = [](int64_t count, double value) {
    return Values(static_cast<size_t>(count), value);
  };
  a.grad = c.in(DType::f32, testing::random_values(kCount, DType::f32, 3));
  const Values weights = testing::random_values(kCount, DType::f32, 1);
  const bool applies = call == AdafactorCall::apply;
  a.master = applies ? c.changed(DType::f32, weights) : read(c.in(DType::f32, weights));
  a.ema = applies ? c.changed(DType::f32, weights) : nullptr;
  a.factors = call == AdafactorCall::measure ? c.changed(DType::f32, values(kFactors, 0.5))
                                             : read(c.in(DType::f32, values(kFactors, 0.5)));
  a.sums = static_cast<double*>(call == AdafactorCall::sums
                                    ? c.out(DType::f64, kFactors)
                                    : read(c.in(DType::f64, values(kFactors, 0.25))));
  a.totals =
      static_cast<double*>(call == AdafactorCall::measure ? c.out(DType::f64, 4)
                                                          : read(c.in(DType::f64, values(4, 2.0))));
  const auto bytes = static_cast<int64_t>(adafactor_scratch_bytes(2, 3, a.partial_count));
  a.scratch = applies ? read(c.in(DType::f64, values(bytes / 8, 0.5))) : c.scratch(bytes);
  return a;
}

struct Operation {
  const char* name;
  std::function<void(Call&)> run;
  bool reads_types =
      true;  // false: its arrays have fixed types, so that one target a device is enough
};

// clang-format off

// Of sentences that begin, two rows each, at most three slots a row.
template <size_t N>
BeamState beam_state(Call& c, const std::array<BeamSentence, N>& sentences) {
  Values starts, scores;
  for (size_t row = 0; row < 2 * N; ++row) {
    starts.push_back(static_cast<double>(3 * row));
    scores.push_back(row % 2 == 0 ? 0 : -INFINITY);
  }
  const Values zeros(2 * N), slots(6 * N);
  return {.ids = c.changed_ints(Values(2 * N, 1)), .positions = c.changed_ints(zeros), .finished = c.changed_ints(zeros),
          .lengths = c.changed_ints(zeros), .starts = c.changed_ints(starts), .scores = c.changed(c.wide, scores),
          .penalties = c.changed(c.wide, zeros), .sentences = c.changed_object(sentences)->data(),
          .slots = c.changed_ints(slots), .tokens = c.changed_ints(slots), .sums = c.changed(c.wide, slots)};
}

// Three slots a row; the second row has ended.
template <size_t N>
SampleState sample_state(Call& c, const std::array<SampleSequence, N>& wishes) {
  Values starts, finished(N);
  for (size_t row = 0; row < N; ++row) starts.push_back(static_cast<double>(3 * row));
  finished[1] = 1;
  return {.ids = c.changed_ints(Values(N, 1)), .positions = c.changed_ints(Values(N)), .finished = c.changed_ints(finished),
          .starts = c.changed_ints(starts), .sequences = c.changed_object(wishes)->data(),
          .tokens = c.changed_ints(Values(3 * N, 1))};
}

const std::vector<Operation>& operations() {
  static const std::vector<Operation> all = {
      {"activation_forward", [](Call& c) {
         ActivationArgs a = activation_args(c);
         a.y = c.out(kRows * kCols);
         activation_forward(c.ctx(), a);
       }},
      {"activation_backward", [](Call& c) {
         activation_backward(c.ctx(), {.forward = activation_args(c), .d_y = c.in(kRows * kCols),
                                       .d_x = c.out(kRows * 2 * kCols)});
       }},
      {"add", [](Call& c) {
         add(c.ctx(), {.a = c.in(1001), .b = c.in(1001), .y = c.out(1001), .count = 1001, .dtype = c.dtype});
       }},
      {"cast", [](Call& c) {
         const DType to = c.dtype == DType::f32 ? DType::bf16 : DType::f32;
         cast(c.ctx(), {.x = c.in(1001), .y = c.out(to, 1001), .count = 1001, .x_type = c.dtype, .y_type = to});
       }},
      {"compress", [](Call& c) {
         constexpr int64_t kCount = 2 * kCodedElements + 7, kBlocks = 4, kWords = kBlocks * 65;
         compress(c.ctx(), {.x = c.in(kCount), .residual = c.changed(DType::f32, kCount),
                            .inputs = reinterpret_cast<const CodedBlock*>(c.in(DType::f32, Values(2 * kWords, 0.5))),
                            .input_count = 2,
                            .y = static_cast<CodedBlock*>(c.changed(DType::i32, Values(kWords, 0))),
                            .count = kCount, .blocks = kBlocks, .dtype = DType::f32});
       }, false},
      {"decompress", [](Call& c) {
         constexpr int64_t kCount = 2 * kCodedElements + 7;
         decompress(c.ctx(), {.x = reinterpret_cast<const CodedBlock*>(c.in(DType::f32, Values(3 * 65, 0.5))),
                              .y = c.out(kCount), .count = kCount, .dtype = DType::f32});
       }, false},
      {"column_sum", [](Call& c) {
         ColumnSumArgs a{.x = c.in(300 * kCols), .out = c.changed(c.wide, kCols), .rows = 300, .cols = kCols,
                         .ld = kCols, .dtype = c.dtype, .accumulate = true};
         a.partial = c.scratch(column_sum_scratch_bytes(c.device(), a));
         column_sum(c.ctx(), a);
       }},
      {"combine_rows", [](Call& c) {
         combine_rows(c.ctx(), {.x = c.in(12 * kCols), .slots = c.ints(kSlots), .gates = c.wide_in(kRows * 2),
                                .y = c.out(kRows * kCols), .rows = kRows, .cols = kCols, .k = 2, .dtype = c.dtype});
       }},
      {"combine_rows_backward", [](Call& c) {
         combine_rows_backward(c.ctx(), {.forward = {.x = c.in(12 * kCols), .slots = c.ints(kSlots),
                                                     .gates = c.wide_in(kRows * 2), .rows = kRows, .cols = kCols,
                                                     .k = 2, .dtype = c.dtype},
                                         .d_y = c.in(kRows * kCols), .d_x = c.out(12 * kCols),
                                         .d_gates = c.wide_out(kRows * 2)});
       }},
      {"dispatch_rows", [](Call& c) {
         dispatch_rows(c.ctx(), {.x = c.in(kRows * kCols), .slots = c.ints(kSlots), .y = c.out(12 * kCols),
                                 .rows = kRows, .cols = kCols, .k = 2, .dtype = c.dtype});
       }},
      {"dispatch_rows_backward", [](Call& c) {
         dispatch_rows_backward(c.ctx(), {.forward = {.slots = c.ints(kSlots), .rows = kRows, .cols = kCols, .k = 2,
                                                      .dtype = c.dtype},
                                          .d_y = c.in(12 * kCols), .d_x = c.out(kRows * kCols)});
       }},
      {"route_tokens", [](Call& c) {
         RouteTokensArgs a = route_args(c);
         a.choices = c.changed_ints(Values(kRows * 2, -7));
         a.gates = c.wide_out(kRows * 2);
         route_tokens(c.ctx(), a);
       }},
      {"route_tokens_backward", [](Call& c) {
         route_tokens_backward(c.ctx(), {.forward = route_args(c), .d_gates = c.wide_in(kRows * 2),
                                         .counts = c.ints({4, 2, 1, 2, 1}), .d_logits = c.wide_out(kRows * 5),
                                         .balance_loss = 0.1f, .z_loss = 0.1f, .grad_scale = 0.5f});
       }},
      {"routing_statistics", [](Call& c) {
         routing_statistics(c.ctx(), {.logits = c.wide_in(kRows * 5), .choices = c.ints(kChoices),
                                      .kept = c.ints(kChoices), .counts = c.ints({4, 2, 1, 2, 1}),
                                      .valid = c.ints({6}),
                                      .totals = static_cast<double*>(c.changed(DType::f64, kRoutingBlocks * 11)),
                                      .rows = kRows, .experts = 5, .k = 2, .dtype = c.dtype});
       }},
      {"limit_choices", [](Call& c) {
         limit_choices(c.ctx(), {.choices = c.ints(kChoices), .valid = c.ints({6}),
                                 .kept = c.changed_ints(Values(4 * 2, -7)), .counts = c.changed_ints(Values(5, -7)),
                                 .scratch = static_cast<int32_t*>(c.scratch(4 * expert_scratch(kRows, 2, 5))),
                                 .rows = kRows, .first_row = 2, .own_rows = 4, .experts = 5, .k = 2,
                                 .capacity_factor = 1.0});
       }, false},
      {"sort_by_expert", [](Call& c) {
         sort_by_expert(c.ctx(), {.choices = c.ints(kChoices), .slots = c.changed_ints(Values(kRows * 2, -7)),
                                  .offsets = c.changed_ints(Values(4, -7)),
                                  .scratch = static_cast<int32_t*>(c.scratch(4 * expert_scratch(kRows, 2, 3))),
                                  .rows = kRows, .k = 2, .first_expert = 1, .experts = 3});
       }, false},
      {"embedding_forward", [](Call& c) {
         EmbeddingArgs a = embedding_args(c);
         a.y = c.out(kRows * kCols);
         embedding_forward(c.ctx(), a);
       }},
      {"embedding_backward", [](Call& c) {
         embedding_backward(c.ctx(), {.forward = embedding_args(c), .d_y = c.in(kRows * kCols),
                                      .order = c.ints({3, 6, 1, 4, 0, 2, 5}), .valid_rows = c.ints({7}),
                                      .cu = c.ints({0, 3, 6, 7}), .sequences = 3,
                                      .d_table = c.wide_out(kVocab * kCols),
                                      .d_position_table = c.changed(c.wide, 4 * kCols),
                                      .zero_row = 2, .accumulate_positions = true});
       }},
      {"cross_entropy", [](Call& c) {
         cross_entropy(c.ctx(), {.logits = c.changed(c.dtype, kRows * 16), .targets = c.ints({3, 1, -1, 0, 2, 10, 0}),
                                 .loss = c.wide_out(kRows), .nll = c.wide_out(kRows), .rows = kRows, .vocab = kVocab,
                                 .ld = 16, .dtype = c.dtype, .label_smoothing = 0.1f, .grad_scale = 0.5f});
       }},
      {"linear_cross_entropy", [](Call& c) {
         if (c.device().is_cuda() && c.dtype != DType::bf16) return;
         LinearCrossEntropyArgs a{.x = c.in(kRows * 16), .w = c.in(16 * 16), .bias = c.in(16),
                                  .targets = c.ints({3, 1, -1, 0, 2, 10, 0}), .e = c.out((kRows + 8) * 16),
                                  .scaled = c.out((kRows + 8) * 16), .factor = c.wide_out(kRows),
                                  .uniform = c.wide_out(16), .loss = c.wide_out(kRows), .nll = c.wide_out(kRows),
                                  .rows = kRows, .width = 16, .vocab = kVocab, .ld = 16, .dtype = c.dtype,
                                  .label_smoothing = 0.1f, .grad_scale = 0.5f};
         if (!linear_cross_entropy_fits(c.ctx(), a) && c.device().is_cuda()) return;
         a.scratch = c.scratch(linear_cross_entropy_scratch_bytes(c.device(), a));
         linear_cross_entropy(c.ctx(), a);
       }},
      {"linear_cross_entropy_backward", [](Call& c) {
         if (c.device().is_cuda() && (c.dtype != DType::bf16 || capability_of(c.ctx()).major != 9)) return;
         linear_cross_entropy_backward(c.ctx(), {.e = c.in(kRows * 16), .w = c.in(16 * 24), .factor = c.wide_in(kRows),
                                                       .uniform = c.wide_in(24), .d_x = c.out(kRows * 24), .rows = kRows,
                                                       .width = 24, .ld = 16, .dtype = c.dtype});
       }},
      {"loss_statistics", [](Call& c) {
         loss_statistics(c.ctx(), {.logits = c.in(kRows * 16), .targets = c.ints({30, 17, -1, 0, 29, 10, 31}),
                                   .statistics = c.wide_out(kRows * 4), .rows = kRows, .vocab = 32, .ld = 16,
                                   .first_class = 16, .dtype = c.dtype});
       }},
      {"cross_entropy_finish", [](Call& c) {
         cross_entropy_finish(c.ctx(), {.forward = {.logits = c.changed(c.dtype, kRows * 16),
                                                    .targets = c.ints({30, 17, -1, 0, 29, 10, 31}),
                                                    .loss = c.wide_out(kRows), .nll = c.wide_out(kRows), .rows = kRows,
                                                    .vocab = 32, .ld = 16, .dtype = c.dtype, .label_smoothing = 0.1f,
                                                    .grad_scale = 0.5f},
                                        .statistics = c.in(c.wide, Values(2 * kRows * 4, 1.5)), .parts = 2, .first_class = 16});
       }},
      {"loss_totals", [](Call& c) {
         loss_totals(c.ctx(), {.loss = c.wide_in(kRows), .nll = c.wide_in(kRows), .targets = c.ints({3, 1, -1, 0, 2, 10, 0}),
                               .rows = kRows, .dtype = c.dtype,
                               .totals = static_cast<double*>(c.changed(DType::f64, {1, 2, 3})), .accumulate = true});
       }},
      {"norm_forward", [](Call& c) {
         norm_forward(c.ctx(), {.x = c.in(kRows * kCols), .branch = c.in(kRows * kCols), .sum = c.out(kRows * kCols),
                                .weight = c.wide_in(kCols), .bias = c.wide_in(kCols), .y = c.out(kRows * kCols),
                                .mean = c.wide_out(kRows), .rstd = c.wide_out(kRows), .rows = kRows, .cols = kCols,
                                .dtype = c.dtype, .dropout = Call::kDropout, .rng = c.rng()});
       }},
      {"norm_backward", [](Call& c) {
         NormBackwardArgs a{.kind = NormKind::rms_norm, .d_y = c.in(kRows * kCols), .d_sum = c.in(kRows * kCols),
                            .sum = c.in(kRows * kCols), .weight = c.wide_in(kCols), .rstd = c.wide_in(kRows),
                            .d_x = c.out(kRows * kCols), .d_branch = c.out(kRows * kCols),
                            .d_weight = c.changed(c.wide, kCols), .accumulate = true, .rows = kRows, .cols = kCols,
                            .dtype = c.dtype, .dropout = Call::kDropout, .rng = c.rng()};
         a.partial = c.scratch(norm_backward_scratch_bytes(c.device(), a));
         norm_backward(c.ctx(), a);
       }},
      {"head_norm", [](Call& c) {
         head_norm(c.ctx(), {.x = c.in(kRows * kCols), .weight = c.wide_in(12), .y = c.out(kRows * kCols),
                             .rows = kRows, .heads = 3, .head_size = 12, .x_stride = kCols, .y_stride = kCols,
                             .dtype = c.dtype});
       }},
      {"keep_columns", [](Call& c) {
         KeepColumnsArgs a{.x = c.changed(c.dtype, kRows * kCols), .group_of_row = c.ints({0, 1, 2, -1, 1, 0, 7}),
                           .rows = kRows, .groups = 3, .dtype = c.dtype};
         a.begins = {0, 3, 10, kCols};
         keep_columns(c.ctx(), a);
       }},
      {"nf4_dequantize", [](Call& c) {
         constexpr int64_t kCount = 1003;
         std::array<char, Nf4Layout(kCount).bytes()> held;
         const std::vector<double> w = testing::random_values(kCount, DType::f32, 4);
         nf4_quantize(std::vector<float>(w.begin(), w.end()).data(), kCount, held.data());
         nf4_dequantize(c.ctx(), {.held = c.in_object(held), .w = c.out(kCount), .count = kCount, .dtype = c.dtype});
       }},
      {"relative_bias", [](Call& c) {
         relative_bias(c.ctx(), {.table = c.wide_in(4 * 3), .buckets = c.ints({3, 2, 1, 0, 1, 2, 3, 2}) + 3,
                                 .bias = c.wide_out(3 * 4 * 5), .heads = 3, .queries = 4, .keys = 5,
                                 .dtype = c.wide});
       }},
      {"soft_cap", [](Call& c) {
         soft_cap(c.ctx(), {.x = c.in(1001), .y = c.out(1001), .count = 1001, .dtype = c.dtype, .cap = 1.5f});
       }},
      {"rotary", [](Call& c) {
         rotary(c.ctx(), {.x = c.in(kRows * kCols), .y = c.out(kRows * kCols), .positions = c.ints({0, 1, 2, 3, 0, 900, 2}),
                          .rows = kRows, .heads = 3, .head_size = 12, .x_stride = kCols, .y_stride = kCols,
                          .dtype = c.dtype});
       }},
      {"matmul", [](Call& c) {
         matmul(c.ctx(), {.a = c.in(33 * 24), .b = c.in(40 * 24), .c = c.in(33 * 40), .d = c.out(33 * 40),
                          .bias = c.in(40), .m = 33, .n = 40, .k = 24, .lda = 24, .ldb = 24, .ldc = 40, .ldd = 40,
                          .tb = Transpose::yes, .ab_type = c.dtype, .d_type = c.dtype, .alpha = 0.5f, .beta = 1.0f});
       }},
      {"grouped_gemm", [](Call& c) {
         const int32_t* offsets = c.ints({0, 4, 4, 7});
         const void *x = c.in(kRows * 24), *w = c.in(3 * 16 * 24), *d_y = c.in(kRows * 16);
         const DType of_weights = c.dtype == DType::f64 ? DType::f64 : DType::f32;
         GroupedGemmArgs a{.a = x, .b = w, .d = c.out(kRows * 16), .offsets = offsets, .groups = 3, .rows = kRows,
                           .n = 16, .k = 24, .dtype = c.dtype};
         grouped_gemm(c.ctx(), a);
         a.form = GroupedForm::input_gradient, a.a = d_y, a.d = c.out(kRows * 24);
         grouped_gemm(c.ctx(), a);
         a.form = GroupedForm::weight_gradient, a.b = x, a.d = c.changed(of_weights, 3 * 16 * 24), a.beta = 1.0f;
         grouped_gemm(c.ctx(), a);
       }},
      {"conv2d_forward", [](Call& c) {
         Conv2dArgs a = conv_args(c);
         a.y = c.out(outputs_of(a));
         conv2d_forward(c.ctx(), a);
       }},
      {"conv2d_backward", [](Call& c) {
         const Conv2dArgs a = conv_args(c);
         conv2d_backward(c.ctx(), {.forward = a, .d_y = c.in(outputs_of(a)), .d_x = c.out(2 * 6 * 5 * 3),
                                   .d_w = c.out(4 * 3 * 2 * 3)});
       }},
      {"packed_linear", [](Call& c) {
         if (c.device().is_cuda()) return;  // the CPU's alone
         const std::vector<float> w(19 * 21, 0.5f);
         for (const PackedType type : {PackedType::f32, PackedType::s8, PackedType::bf16})
           packed_linear(c.ctx(), {.x = static_cast<const float*>(c.in(7 * 21)),
                                   .w = PackedWeights(type, w.data(), 19, 21).view(),
                                   .bias = static_cast<const float*>(c.in(19)), .y = static_cast<float*>(c.out(7 * 19)),
                                   .rows = 7, .ldx = 21, .ldy = 19, .level = cpu_level()});
       }, false},
      {"attention_forward", [](Call& c) {
         void *o = c.out(kRows * 64), *lse = c.wide_out(2 * kRows);
         attention_forward(c.ctx(), attention_args(c, o, lse));
       }},
      {"attention_backward", [](Call& c) {
         AttentionBackwardArgs b{.forward = attention_args(c, c.in(kRows * 64), c.wide_in(2 * kRows)),
                                 .d_o = c.in(kRows * 64), .d_q_stride = 64, .d_k_stride = 32, .d_v_stride = 32,
                                 .delta = c.scratch(2 * kRows * 8)};
         b.d_q = c.out(kRows * 64), b.d_k = c.out(kRows * 32), b.d_v = c.out(kRows * 32);
         b.workspace_bytes = kAnyWorkspace;
         b.workspace_bytes = plan_attention(c.ctx(), b).workspace_bytes;
         b.workspace = c.scratch(b.workspace_bytes);
         attention_backward(c.ctx(), b);
       }},
      {"cached_attention", [](Call& c) {
         cached_attention(c.ctx(), {.qkv = c.in(4 * 64), .cache = c.changed(c.dtype, 4 * 8 * 32), .o = c.out(4 * 32),
                                    .positions = c.ints({0, 3, 7, 5}), .starts = c.ints({0, 8, 16, 24}),
                                    .finished = c.ints({0, 0, 1, 0}), .rows = 4, .heads = 2, .kv_heads = 1,
                                    .head_size = 16, .max_positions = 8, .dtype = c.dtype, .scale = 0.25f});
       }},
      {"memory_weights", [](Call& c) {
         memory_weights(c.ctx(), {.q = c.in(4 * 32), .memory = c.in(9 * 32),
                                  .w = static_cast<float*>(c.changed(DType::f32, Values(8 * 5))), .starts = c.ints({0, 4, 4, 2}),
                                  .lengths = c.ints({4, 5, 5, 2}), .finished = c.ints({0, 0, 1, 0}),
                                  .slot_starts = c.ints({0, 2, 4, 6}), .positions = c.ints({1, 1, 0, 0}), .rows = 4,
                                  .heads = 2, .kv_heads = 1, .head_size = 16, .first_head = 0, .head_count = 2,
                                  .max_positions = 5, .stride = 5, .dtype = c.dtype, .scale = 0.25f});
       }},
      {"beam_step", [](Call& c) {
         const BeamSentence wish{.limit = 3, .rules = {.repetition_penalty = 1.2f, .no_repeat_ngram = 2, .least = 1}};
         const BeamSentence draws{.limit = 3, .groups = 2, .drawn = 1};
         const BeamState state = beam_state<2>(c, {wish, draws});
         beam_step(c.ctx(), {.logits = c.changed(c.dtype, 4 * 16), .state = state,
                             .suppressed = {c.ints({3}), 1}, .candidate_scores = c.scratch(4 * 2 * 8),
                             .candidate_ids = static_cast<int32_t*>(c.scratch(4 * 2 * 4)),
                             .result = {.done = c.changed_ints(Values(2)), .tokens = c.changed_ints(Values(16)),
                                        .sums = c.changed(c.wide, Values(16)), .stride = 4},
                             .sentences = 2, .beam = 2, .vocab = kVocab, .ld = 16, .dtype = c.dtype, .eos = 2, .banned = 0, .draws = true});
       }},
      {"mean_logits", [](Call& c) {
         const BeamSentence wish{.limit = 3, .rules = {.repetition_penalty = 1.2f, .least = 1}};
         const BeamState state = beam_state<2>(c, {wish, BeamSentence{.limit = 2}});
         mean_logits(c.ctx(), {.logits = {c.changed(c.dtype, 4 * 16), c.changed(c.dtype, 4 * 16)}, .weights = {0.25, 0.75},
                               .models = 2, .mean = c.changed(c.wide, Values(4 * 16)), .log_sums = c.changed(c.wide, Values(4)),
                               .state = state, .suppressed = {c.ints({3}), 1}, .sentences = 2, .beam = 2, .vocab = kVocab,
                               .ld = 16, .dtype = c.dtype, .eos = 2});
       }},
      {"beam_place", [](Call& c) {
         struct Two { BeamPlacement of[2]; };
         const Two two{{{.what = BeamPlacement::What::move, .to = 0, .from = 1},
                        {.what = BeamPlacement::What::start, .to = 2, .first_slot = 6, .memory_start = 5,
                         .memory_length = 4, .prefix_at = 1, .sentence = {.limit = 3, .prefix = 2}}}};
         const BeamState state = beam_state<3>(c, {BeamSentence{.limit = 3}, {.limit = 2}, {.limit = 1}});
         beam_place(c.ctx(), {.placements = c.in_object(two)->of, .count = c.ints({2}), .prefixes = c.ints({0, 4, 5}),
                              .most = 4, .state = state, .memory_starts = c.changed_ints({1, 1, 2, 2, 3, 3}),
                              .memory_lengths = c.changed_ints({1, 1, 2, 2, 3, 3}), .beam = 2, .dtype = c.dtype, .start = 1});
       }},
      {"sample_step", [](Call& c) {
         const SampleSequence wish{.seed = 7, .top_p = 0.9f, .top_k = 5, .ends = {2}, .end_count = 1, .limit = 9,
                                   .wants_scores = 1, .rules = {.repetition_penalty = 1.5f}};
         std::array<SampleSequence, 3> wishes{wish, wish, wish};
         wishes[1].result = 1, wishes[2].result = 2, wishes[2].prompt = 2;
         sample_step(c.ctx(), {.logits = c.changed(c.dtype, 3 * 16), .state = sample_state(c, wishes),
                               .suppressed = {c.ints({3}), 1},
                               .result = {.tokens = c.changed_ints(Values(12)),
                                          .log_probabilities = static_cast<float*>(c.changed(DType::f32, Values(12))),
                                          .stride = 4},
                               .rows = 3, .vocab = kVocab, .ld = 16, .dtype = c.dtype});
       }},
      {"sample_place", [](Call& c) {
         struct Three { SamplePlacement of[3]; };
         const Three three{{{.what = SamplePlacement::What::move, .to = 0, .from = 1},
                            {.what = SamplePlacement::What::clear, .to = 3},
                            {.what = SamplePlacement::What::start, .to = 2, .first_slot = 6, .prompt_at = 1, .first = 1,
                             .sequence = {.prompt = 2, .limit = 3}}}};
         const std::array<SampleSequence, 4> wishes{};
         sample_place(c.ctx(), {.placements = c.in_object(three)->of, .count = c.ints({3}), .prompts = c.ints({0, 4, 5}),
                                .most = 4, .state = sample_state(c, wishes)});
       }, false},
      {"gradient_norm_blocks", [](Call& c) {
         constexpr int64_t kCount = 40 * kParameterAlign;
         const OwnedRange second_half{.begin = kNormBlock, .end = kCount};
         const Values gradient = testing::random_values(kCount, DType::f32, 3);
         gradient_norm_blocks(c.ctx(), {.grad = c.in(DType::f32, gradient), .count = kCount, .ranges = {&second_half, 1},
                                        .partial = static_cast<double*>(c.out(DType::f64, norm_blocks(kCount))),
                                        .state = c.changed_object(state_of_a_step())});
       }, false},
      {"gradient_norm_join", [](Call& c) {
         constexpr int64_t kCount = 40 * kParameterAlign;
         const Values sums = testing::random_values(norm_blocks(kCount), DType::f32, 3);
         gradient_norm_join(c.ctx(), {.count = kCount, .ranges = {},
                                      .partial = static_cast<double*>(c.changed(DType::f64, sums)),
                                      .state = c.changed_object(state_of_a_step())});
       }, false},
      {"adamw", [](Call& c) {
         constexpr int64_t kCount = 4 * kParameterAlign;
         const OwnedRange whole{.begin = 0, .end = kCount};
         const auto values = [&](uint64_t seed) { return testing::random_values(kCount, DType::f32, seed); };
         const auto array = [&](uint64_t seed) { return c.changed(DType::f32, values(seed)); };
         adamw(c.ctx(), {.master = array(1), .m = array(2), .v = c.changed(DType::f32, Values(kCount, 0.5)),
                         .grad = c.in(DType::f32, values(4)), .ema = array(5), .compute = c.out(DType::bf16, kCount),
                         .rules = reinterpret_cast<const DecayRule*>(c.ints({0x00000100})), .ranges = {&whole, 1},
                         .weight_decay = 0.1f, .clip_norm = 1.0f, .ema_decay = 0.9f,
                         .schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.1f},
                         .state = c.in_object(state_of_a_step())});
       }, false},
      {"muon", [](Call& c) {
         constexpr int64_t kOut = 16, kIn = 24;
         const auto array = [&](uint64_t seed) {
           return c.changed(DType::f32, testing::random_values(kOut * kIn, DType::f32, seed));
         };
         MuonArgs args{.master = array(1), .m = array(2),
                       .grad = c.in(DType::f32, testing::random_values(kOut * kIn, DType::f32, 3)), .ema = array(4),
                       .rows = kOut, .cols = kIn, .weight_decay = 0.1f, .clip_norm = 1.0f, .ema_decay = 0.9f,
                       .schedule = {.kind = ScheduleKind::constant, .peak_lr = 0.1f},
                       .state = c.in_object(state_of_a_step())};
         args.scratch = c.scratch(static_cast<int64_t>(muon_scratch_bytes(args)));
         muon(c.ctx(), args);
       }, false},
      {"adafactor_sums", [](Call& c) { adafactor_sums(c.ctx(), adafactor_args(c, AdafactorCall::sums)); }, false},
      {"adafactor_measure", [](Call& c) { adafactor_measure(c.ctx(), adafactor_args(c, AdafactorCall::measure)); }, false},
      {"adafactor_apply", [](Call& c) { adafactor_apply(c.ctx(), adafactor_args(c, AdafactorCall::apply)); }, false},
      {"fp8_quantize", [](Call& c) {
         fp8_quantize(c.ctx(), {.x = c.in(DType::f32, testing::random_values(32 * 48, DType::f32, 3)),
                                .y = static_cast<uint8_t*>(c.changed(DType::i32, Values(32 * 12, 0))),
                                .transposed = static_cast<uint8_t*>(c.changed(DType::i32, Values(32 * 12, 0))),
                                .site = c.changed_object(Fp8Site{}), .rows = 32, .cols = 48});
       }, false},
      {"fp8_quantize_weights", [](Call& c) {
         std::vector<Fp8WeightArgs> matrices;
         for (const int64_t rows : {16, 48, 160}) {
           const auto words = static_cast<size_t>(rows * 32 / 4);
           matrices.push_back({.x = c.in(DType::f32, testing::random_values(rows * 32, DType::f32, 3)),
                          .y = static_cast<uint8_t*>(c.changed(DType::i32, Values(words, 0))),
                          .transposed = static_cast<uint8_t*>(c.changed(DType::i32, Values(words, 0))),
                          .site = c.changed_object(Fp8Site{}), .rows = rows, .cols = 32});
         }
         fp8_quantize_weights(c.ctx(), {matrices});
       }, false},
      {"fp8_roll", [](Call& c) {
         Fp8Site site;
         site.amax = 3;
         fp8_roll(c.ctx(), {.sites = c.changed_object(site), .count = 1,
                            .state = c.in_object(state_of_a_step())});
       }, false},
      {"fp8_matmul", [](Call& c) {
         if (fp8_refusal(c.device()) != nullptr) return;
         Fp8Site site;
         site.inverse = 0.5f;
         const DType type = c.device().is_cuda() ? DType::bf16 : DType::f32;
         const auto codes = [&](int64_t rows) {
           return static_cast<const uint8_t*>(c.in(DType::i32, Values(static_cast<size_t>(rows * 8), 0x3A413845)));
         };
         fp8_matmul(c.ctx(), {.a = codes(5), .b = codes(16), .a_site = c.in_object(site), .b_site = c.in_object(site),
                              .d = c.out(type, 5 * 16), .bias = c.in(type, testing::random_values(16, type, 1)),
                              .scratch = c.scratch(static_cast<int64_t>(fp8_matmul_scratch_bytes(c.device(), 5, 16, 32))),
                              .m = 5, .n = 16, .k = 32, .dtype = type});
       }, false},
      {"block_quantize", [](Call& c) {
         for (const BlockFormat f : {BlockFormat::mxfp8_e5m2, BlockFormat::nvfp4}) {
           const auto bytes = [&](int64_t count) {
             return static_cast<uint8_t*>(c.changed(DType::i32, Values(static_cast<size_t>(count / 4), 0)));
           };
           block_quantize(c.ctx(), {.x = c.in(DType::f32, testing::random_values(48 * 80, DType::f32, 3)),
                                    .codes = bytes(block_code_bytes(f, 48, 80)),
                                    .scales = bytes(block_scale_bytes(f, 48, 80)),
                                    .transposed = bytes(block_code_bytes(f, 80, 48)),
                                    .transposed_scales = bytes(block_scale_bytes(f, 80, 48)),
                                    .tensor = c.changed_object(BlockTensor{}), .rows = 48, .cols = 80, .format = f});
         }
       }, false},
      {"block_matmul", [](Call& c) {
         if (block_refusal(c.device()) != nullptr) return;
         BlockTensor tensor;
         tensor.scale = 0.5f;
         const DType type = c.device().is_cuda() ? DType::bf16 : DType::f32;
         for (const BlockFormat f : {BlockFormat::mxfp8_e4m3, BlockFormat::nvfp4}) {
           const auto bytes = [&](int64_t count, double word) {
             return static_cast<const uint8_t*>(c.in(DType::i32, Values(static_cast<size_t>(count / 4), word)));
           };
           const auto operand = [&](int64_t rows) {
             return BlockOperand{.codes = bytes(block_code_bytes(f, rows, 64), 0x3A413845),
                                 .scales = bytes(block_scale_bytes(f, rows, 64), 0x3A3B3C3D),
                                 .tensor = c.in_object(tensor), .format = f};
           };
           block_matmul(c.ctx(), {.a = operand(5), .b = operand(16), .d = c.out(type, 5 * 16),
                                  .bias = c.in(type, testing::random_values(16, type, 1)),
                                  .scratch = c.scratch(static_cast<int64_t>(block_matmul_scratch_bytes(c.device(), 5, 16, 64))),
                                  .m = 5, .n = 16, .k = 64, .dtype = type});
         }
       }, false},
      {"finish_step", [](Call& c) {
         finish_step(c.ctx(), {.state = c.changed_object(state_of_a_step()), .ring = c.host_object<StepRecord>(),
                               .ring_slots = 1, .dynamic_loss_scale = true, .growth_interval = 1});
       }, false},
      {"batch_intake", [](Call& c) {
         struct Slots { const int32_t* at[2]; };
         const Slots slots{{c.ints(Values(1027, 3)), c.ints(Values(1027, 4))}};
         batch_intake(c.ctx(), {.slots = c.in_object(slots)->at, .slot_count = 2,
                                .dst = static_cast<int32_t*>(c.changed(DType::i32, Values(1027, 0))),
                                .words = 1027, .state = c.changed_object(state_of_a_step())});
       }, false},
  };
  return all;
}
// clang-format on

class Conformance : public ::testing::TestWithParam<Target> {};
INSTANTIATE_TEST_SUITE_P(Targets, Conformance, testing::all_targets(), testing::target_name);

TEST_P(Conformance, OperationsRepeatBitForBitAndKeepToTheirArrays) {
  if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
  for (const Operation& op : operations()) {
    if (!op.reads_types && GetParam().dtype != DType::f32) continue;
    SCOPED_TRACE(op.name);
    Call first(GetParam()), again(GetParam());
    op.run(first);
    op.run(again);
    EXPECT_TRUE(first.results() == again.results()) << "differs run to run";
  }
}

// Functions that choose one of several implementations, as the headers declare them.
std::set<std::string> declared_operations() {
  std::set<std::string> names;
  const std::filesystem::path root = std::filesystem::path(SATURATE_SOURCE_DIR) / "src/kernels";
  const std::regex declaration(R"(\nvoid (\w+)\(const Context& ctx, const \w+Args& \w+\);)");
  // One implementation: its family's test runs it by name.
  const std::regex implementation(R"(launch_.*|.*_(cuda|cpu|d\d+)|matmul_tune)");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    const std::string path = entry.path().string();
    if (!path.ends_with(".h") || path.ends_with("_impl.h")) continue;
    std::ifstream in(path);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    if (text.find("\nnamespace saturate::kernels {") == std::string::npos) continue;
    for (std::sregex_iterator m(text.begin(), text.end(), declaration), end; m != end; ++m)
      if (!std::regex_match((*m)[1].str(), implementation)) names.insert((*m)[1]);
  }
  return names;
}

TEST(ConformanceList, NamesEveryOperation) {
  // Rungs of the ladder of attention with interfaces of their own, which dispatch never chooses: their tests lie in their
  // folders and check the same.
  const std::set<std::string> elsewhere = {"attention_forward_cute",
                                           "attention_forward_int8",
                                           "attention_forward_materialised"};
  std::set<std::string> entries;
  for (const Operation& op : operations()) entries.insert(op.name);
  const std::set<std::string> declared = declared_operations();
  EXPECT_GE(declared.size(), entries.size());
  for (const std::string& name : declared)
    EXPECT_TRUE(entries.contains(name) || elsewhere.contains(name))
        << name << " has no entry in operations() of " << __FILE__;
  for (const std::string& name : entries)
    EXPECT_TRUE(declared.contains(name)) << name << " is in no header of src/kernels any more";
}

}  // namespace
}  // namespace saturate::kernels
