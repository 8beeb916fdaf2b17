// SPDX-License-Identifier: Apache-2.0
#include "kernels/support.h"

#include <fmt/format.h>

#include <functional>
#include <span>
#include <vector>

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
#include "kernels/gemm/grouped/grouped_gemm_impl.h"
#include "kernels/gemm/matmul_impl.h"
#include "kernels/head_norm/head_norm.h"
#include "kernels/lists.h"
#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/linear_cross_entropy.h"
#include "kernels/nf4/nf4.h"
#include "kernels/norm/norm.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/relative_bias/relative_bias.h"
#include "kernels/rotary/rotary.h"

namespace saturate::kernels {
namespace {

struct Machine {
  const char* name;
  Device device;
  Capability gpu;
};
constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr Machine kMachines[] = {
    {"CPU", {}, {}},
    {"GPU 8.0", kGpu, {.major = 8, .multiprocessors = 108, .shared_bytes = 166912}},
    {"GPU 9.0",
     kGpu,
     {.major = 9, .multiprocessors = 132, .shared_bytes = 232448, .tensor_maps = true}}};

char* any() { return reinterpret_cast<char*>(uintptr_t{1} << 20); }  // nobody follows it

Context context_of(const Machine& m) {
  return {.device = m.device, .workspace_bytes = kWorkspaceBytes, .capability = &m.gpu};
}

// The name of the first of the list that takes the problem; null: none does.
template <class List, class Args>
const char* choice(const List& list, const Machine& machine, const Args& args) {
  const Context ctx = context_of(machine);
  for (const auto& impl : list) {
    if (impl.device != machine.device.kind || !impl.fits(ctx, args)) continue;
    if constexpr (requires { impl.pays; })
      if (impl.pays != nullptr && !impl.pays(ctx, args)) continue;
    return impl.name;
  }
  return nullptr;
}

// Sets the type of the operation, wherever its arguments have it.
template <class Args>
void set_type(Args& args, DType type) {
  if constexpr (requires { args.forward; }) {
    set_type(args.forward, type);
  } else if constexpr (requires { args.ab_type; }) {
    args.ab_type = args.d_type = type;
  } else if constexpr (requires { args.x_type; }) {
    args.x_type = args.y_type = type;
  } else {
    args.dtype = type;
  }
}

template <class List, class Args>
void add_row(std::string& table, const char* operation, const List& list, Args args) {
  table += fmt::format("| {} |", operation);
  for (const Machine& machine : kMachines) {
    std::string types;
    for (const DType type : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      set_type(args, type);
      if (choice(list, machine, args) == nullptr) continue;
      types += std::string(types.empty() ? " " : ", ") + name_of(type);
    }
    table += (types.empty() ? " no" : types) + " |";
  }
  table += "\n";
}
template <class Args>
void add_row(std::string& table, const char* operation, const Args& args = {}) {
  add_row(table, operation, impls_of<Args>(), args);
}

// Four sequences of 512 rows, eight heads.
AttentionBackwardArgs attention_of(int64_t head_size) {
  AttentionBackwardArgs b;
  AttentionArgs& a = b.forward;
  a.q = a.k = a.v = any(), a.o = a.lse = any();
  a.cu_q = a.cu_k = reinterpret_cast<const int32_t*>(any());
  a.sequences = 4, a.heads = a.kv_heads = 8, a.head_size = head_size;
  a.q_rows = a.k_rows = 2048, a.max_q = a.max_k = 512;
  a.q_stride = a.k_stride = a.v_stride = a.o_stride = 8 * head_size;
  b.d_q_stride = b.d_k_stride = b.d_v_stride = 8 * head_size;
  b.workspace_bytes = kAnyWorkspace;
  return b;
}

struct Feature {
  const char* name;
  void (*set)(AttentionBackwardArgs&, AttentionArgs&);
};
using B = AttentionBackwardArgs;
using A = AttentionArgs;
constexpr Feature kFeatures[] = {
    {"none, or a causal mask", [](B&, A&) {}},
    {"sequences of 32 rows", [](B&, A& a) { a.sequences = 64, a.max_q = a.max_k = 32; }},
    {"dropout", [](B&, A& a) { a.dropout = 0.1f; }},
    {"sliding window", [](B&, A& a) { a.window_left = 128; }},
    {"bottom-right alignment",
     [](B&, A& a) { a.causal = true, a.alignment = CausalAlignment::bottom_right, ++a.cu_k; }},
    {"attention sinks", [](B&, A& a) { a.sinks = any(); }},
    {"soft cap", [](B&, A& a) { a.soft_cap = 30; }},
    {"ALiBi slopes", [](B& b, A& a) { a.alibi_slopes = b.d_alibi_slopes = any(); }},
    {"bias", [](B& b, A& a) { a.bias = b.d_bias = any(); }},
    {"fused rotary positions", [](B&, A& a) { a.rotary_base = 10000; }},
    {"block mask", [](B&, A& a) { a.block_mask = reinterpret_cast<const uint32_t*>(any()); }},
    {"values of another size", [](B&, A& a) { a.v_head_size = a.head_size / 2; }},
    {"window and dropout", [](B&, A& a) { a.window_left = 128, a.dropout = 0.1f; }},
};

// "attention_forward_hopper_cuda" -> "hopper"
std::string room_of(const char* name) {
  if (name == nullptr) return "no";
  std::string room = name;
  room = room.substr(room.find('_', room.find('_') + 1) + 1);
  return room.substr(0, room.rfind('_'));
}

std::string attention_table() {
  struct Column {
    const char* name;
    size_t machine;
    DType type;
    int64_t head_size;
  };
  constexpr Column kColumns[] = {
      {"9.0, 64", 2, DType::bf16, 64},    {"9.0, 128", 2, DType::bf16, 128},
      {"9.0, 256", 2, DType::bf16, 256},  {"8.0, 64", 1, DType::bf16, 64},
      {"8.0, 128", 1, DType::bf16, 128},  {"8.0, 256", 1, DType::bf16, 256},
      {"8.0, 64, f32", 1, DType::f32, 64}};
  std::string table = "| attention with |", rule = "|---|";
  for (const Column& c : kColumns) table += fmt::format(" {} |", c.name), rule += "---|";
  table += "\n" + rule + "\n";
  for (const Feature& feature : kFeatures) {
    table += fmt::format("| {} |", feature.name);
    for (const Column& c : kColumns) {
      B b = attention_of(c.head_size);
      b.forward.dtype = c.type;
      feature.set(b, b.forward);
      const Machine& machine = kMachines[c.machine];
      const std::string forward = room_of(choice(impls_of<A>(), machine, b.forward)),
                        backward = room_of(choice(impls_of<B>(), machine, b));
      table += " " + (forward == backward ? forward : forward + " / " + backward) + " |";
    }
    table += "\n";
  }
  return table;
}

std::string operation_table() {
  std::string table = "| operation |", rule = "|---|";
  for (const Machine& machine : kMachines) {
    table += fmt::format(" {} |", machine.name);
    rule += "---|";
  }
  table += "\n" + rule + "\n";
  const MatmulArgs product{.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64, .ldd = 64};
  const GroupedGemmArgs group{.groups = 4, .rows = 64, .n = 64, .k = 64};
  add_row(table, "matmul", matmul_impls(), product);
  MatmulArgs epilogue = product;
  epilogue.tb = Transpose::yes;
  epilogue.epilogue.kind = EpilogueKind::activation;
  add_row(table, "matmul with an activation", matmul_impls(), epilogue);
  add_row(table, "grouped_gemm", grouped_gemm_impls(), group);
  const Conv2dArgs image{.batch = 1, .height = 8, .width = 8, .channels = 8, .filters = 8};
  add_row(table, "conv2d_forward", image);
  Conv2dBackwardArgs image_back;
  image_back.forward = image;
  add_row(table, "conv2d_backward", image_back);
  add_row(table, "attention_forward", attention_of(64).forward);
  add_row(table, "attention_backward", attention_of(64));
  add_row<CachedAttentionArgs>(table, "cached_attention");
  add_row<MemoryWeightsArgs>(table, "memory_weights");
  add_row<HeadNormArgs>(table, "head_norm");
  add_row<KeepColumnsArgs>(table, "keep_columns");
  add_row<Nf4Args>(table, "nf4_dequantize");
  add_row<Fp8QuantizeArgs>(table, "fp8_quantize");
  add_row<Fp8WeightsArgs>(table, "fp8_quantize_weights");
  add_row<Fp8MatmulArgs>(table, "fp8_matmul");
  add_row<BlockQuantizeArgs>(table, "block_quantize");
  add_row<BlockMatmulArgs>(table, "block_matmul");
  add_row<RelativeBiasArgs>(table, "relative_bias");
  add_row<RotaryArgs>(table, "rotary");
  add_row<NormForwardArgs>(table, "norm_forward");
  add_row<NormBackwardArgs>(table, "norm_backward");
  add_row<ActivationArgs>(table, "activation_forward");
  add_row<ActivationBackwardArgs>(table, "activation_backward");
  add_row<EmbeddingArgs>(table, "embedding_forward");
  add_row<EmbeddingBackwardArgs>(table, "embedding_backward");
  add_row<CrossEntropyArgs>(table, "cross_entropy");
  add_row<LinearCrossEntropyArgs>(table, "linear_cross_entropy");
  add_row<LinearCrossEntropyBackwardArgs>(table, "linear_cross_entropy_backward");
  add_row<LossStatisticsArgs>(table, "loss_statistics");
  add_row<CrossEntropyFinishArgs>(table, "cross_entropy_finish");
  add_row<LossTotalsArgs>(table, "loss_totals");
  add_row<RouteTokensArgs>(table, "route_tokens");
  add_row<RouteTokensBackwardArgs>(table, "route_tokens_backward");
  add_row<RoutingStatisticsArgs>(table, "routing_statistics");
  add_row<DispatchRowsArgs>(table, "dispatch_rows");
  add_row<DispatchRowsBackwardArgs>(table, "dispatch_rows_backward");
  add_row<CombineRowsArgs>(table, "combine_rows");
  add_row<CombineRowsBackwardArgs>(table, "combine_rows_backward");
  add_row<AddArgs>(table, "add");
  add_row<CastArgs>(table, "cast");
  add_row<SoftCapArgs>(table, "soft_cap");
  add_row<ColumnSumArgs>(table, "column_sum");
  add_row<CompressArgs>(table, "compress");
  add_row<DecompressArgs>(table, "decompress");
  add_row<GradientNormArgs>(table, "gradient_norm");
  add_row<AdamWArgs>(table, "adamw");
  add_row<BeamStepArgs>(table, "beam_step");
  add_row<MeanLogitsArgs>(table, "mean_logits");
  add_row<BeamPlaceArgs>(table, "beam_place");
  add_row<SampleStepArgs>(table, "sample_step");
  return table;
}

}  // namespace

std::string support_tables() {
  return "# What runs where\n\n"
         "Made by `saturate info --kernels`, from the lists of implementations; a test compares.\n"
         "The type is that of the operands; f64 is for the checks of gradients. Which "
         "implementation\na call gets, and why not the others: `SATURATE_VERBOSE=dispatch`.\n\n"
         "## Operations\n\n" +
         operation_table() +
         "\n## Attention\n\n"
         "Columns: compute capability, head size (bf16; f16 likewise). Cells: folder below\n"
         "`src/kernels/attention`, forward / backward where they differ (`features`: "
         "mma/features_*;\n"
         "`wide`: 256, and 192 with values of 128). Four sequences of 512 rows unless said.\n\n" +
         attention_table();
}

}  // namespace saturate::kernels
