// SPDX-License-Identifier: Apache-2.0
#include "train/parallel_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "base/error.h"
#include "base/text.h"
#include "model/mixers/mixer.h"
#include "train/model_setup.h"

namespace saturate::train {
namespace {

constexpr std::string_view kSchedules[] = {"1f1b", "gpipe", "interleaved", "zero-bubble"};

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Errc::invalid_argument, "parallel", what);
}

void check_reduce(const ParallelConfig& p) {
  if (p.reduce != "fp32" && (p.zero == "auto" || std::stoi(p.zero) < 2)) {
    refuse(
        fmt::format("parallel.reduce = {} rounds gradients where ranks exchange slices of a "
                    "unit, and parallel.zero is {}; add parallel.zero = 2 or 3",
                    p.reduce, p.zero));
  }
}

// Sums in 8 bits are between copies of the state.
void check_between(const ParallelConfig& p, int dp, int ranks) {
  if (p.reduce_between != "int8") return;
  const bool shared = resolve_parallel(p, ranks).zero > 0;
  if (dp > 1 && (!shared || (p.dp_shard > 0 && p.dp_shard < dp))) return;
  refuse(fmt::format(
      "parallel.reduce_between = int8 is for sums over several copies of the state, and with "
      "parallel.zero = {}, dp_shard = {} the {} of dp {} one; {}",
      p.zero, p.dp_shard, dp == 1 ? "one rank" : fmt::format("{} ranks", dp),
      dp == 1 ? "has" : "share",
      dp == 1 ? "set it to fp32"
              : "add parallel.dp_shard = the ranks of a host, or parallel.zero = 0 where each "
                "host has one"));
}

// Orthogonal is a whole matrix, so every rank has all of it and of its state. Adafactor's sums of rows
// and columns are over all of a matrix, of which ranks may share the elements.
void check_optimizer(const RunConfig& config, int ranks) {
  const ParallelConfig& p = config.parallel;
  const std::string& kind = config.optimizer.kind;
  if (kind == "adamw") return;
  const auto refuse_key = [&](const char* key, const auto& value, const char* remedy) {
    refuse(fmt::format("optimizer.kind = {} works on whole matrices in fp32, and {} = {} {}", kind,
                       key, value, remedy));
  };
  const bool shares = kind == "adafactor";
  const auto refuse_cut = [&](const char* key, int64_t value) {
    refuse_key(key, value,
               shares ? "cuts them; use dp, or pp" : "cuts them; use dp with zero = 0, or pp");
  };
  if (p.tp > 1) refuse_cut("parallel.tp", p.tp);
  if (p.ep > 1) refuse_cut("parallel.ep", p.ep);
  if (!shares && resolve_parallel(p, ranks).zero > 0)
    refuse_key("parallel.zero", p.zero, "shares them out; add parallel.zero = 0");
  if (p.offload) refuse_key("parallel.offload", p.offload, "keeps them elsewhere; leave it out");
  if (config.optimizer.moments != "fp32")
    refuse_key("optimizer.moments", config.optimizer.moments, "is AdamW's; leave it out");
}

void check_rounded(const RunConfig& config, const model::ModelConfig& model) {
  const std::string& precision = config.train.precision;
  if (!rounds_operands(precision)) return;
  if (config.parallel.tp > 1) {
    refuse(fmt::format(
        "train.precision = {} multiplies with whole matrices, and parallel.tp = {} cuts "
        "them; use dp, pp or cp, or train.precision = bf16",
        precision, config.parallel.tp));
  }
  if (!model.lora.empty()) {
    refuse(fmt::format(
        "train.precision = {} is for matrices of layers that train, and with lora.rank those are "
        "frozen; use train.precision = bf16",
        precision));
  }
}

void require_divides(const char* key, int64_t by, const char* what, int64_t value) {
  if (value % by == 0) return;
  refuse(
      fmt::format("parallel.{0} = {1} must divide {2} = {3}; choose a divisor of {3}, or "
                  "change {2}",
                  key, by, what, value));
}

// Hybrid sharding: dp / dp_shard copies of what zero shares out.
void check_copies(const ParallelConfig& p, int dp) {
  if (p.dp_shard == 0) return;
  if (dp % p.dp_shard != 0) {
    refuse(
        fmt::format("parallel.dp_shard = {} must divide the {} ranks of dp; choose a divisor of {}",
                    p.dp_shard, dp, dp));
  }
  const int64_t sharers = p.tp * p.cp * p.dp_shard;
  if (p.zero == "0" || sharers == 1) {
    refuse(
        fmt::format("parallel.dp_shard = {} with parallel.zero = {}: nothing is shared out; leave "
                    "out dp_shard, "
                    "or take zero = 1, 2 or 3 and dp_shard = 2 or more",
                    p.dp_shard, p.zero));
  }
  if (sharers % p.ep != 0) {
    refuse(fmt::format(
        "parallel.ep = {} must divide tp x cp x dp_shard = {}, so that every copy has all experts; "
        "choose a multiple of it for parallel.dp_shard, or leave that out",
        p.ep, sharers));
  }
}

void check_context(const ParallelConfig& p, const model::ModelConfig& model) {
  if (p.cp == 1) return;
  const bool gathers = model::row_chunks(model, p.tp, p.cp, transfer_options(p).context) > 0;
  const bool attends = std::ranges::all_of(
      model.mixers, [](const std::string& name) { return name == "self_attention"; });
  // Attention is shared by heads among the ranks of both.
  for (const auto& [what, heads] :
       {std::pair{"model.heads", model.heads}, std::pair{"model.kv_heads", model.kv_heads}}) {
    if (heads % (p.tp * p.cp) == 0 || (gathers && attends && model.experts == 0)) continue;
    refuse(fmt::format(
        "parallel.tp = {} x parallel.cp = {} must divide {} = {}, which context parallel ranks "
        "share; lower one of them, or change {}{}",
        p.tp, p.cp, what, heads, what,
        gathers ? "" : ", or take parallel.cp_comm_type = all_gather"));
  }
  if (!gathers) return;
  if (!attends || model.experts > 0) {
    refuse(fmt::format(
        "parallel.cp_comm_type = all_gather cuts sequences into chunks, which {} cannot follow; "
        "take a2a",
        attends ? "the places of experts" : "mixers beside self_attention"));
  }
}

}  // namespace

TransferOptions transfer_options(const ParallelConfig& p) {
  return {.context = p.cp_comm_type == "a2a"    ? ContextExchange::heads
                     : p.cp_comm_type == "auto" ? ContextExchange::automatic
                                                : ContextExchange::keys,
          .tp_overlap = p.tp_overlap};
}

parallel::MeshExtents mesh_extents(const ParallelConfig& p, int ranks) {
  const int64_t cuts = p.tp * p.cp * p.pp;
  const int64_t product = cuts * (p.dp > 0 ? p.dp : 1);
  if (p.dp > 0 ? product != ranks : ranks % cuts != 0) {
    const std::string asked =
        fmt::format("{}parallel.tp = {} x parallel.cp = {} x parallel.pp = {}",
                    p.dp > 0 ? fmt::format("parallel.dp = {} x ", p.dp) : "", p.tp, p.cp, p.pp);
    refuse(fmt::format(
        "{} {} {} ranks, and this run has {}; start it on {} (torchrun --nproc-per-node, "
        "mpirun -n, srun -n), or change these keys",
        asked, p.dp > 0 ? "are" : "need a multiple of", product, ranks, product));
  }
  const int64_t stage = ranks / p.pp;
  if (stage % p.ep != 0) {
    refuse(
        fmt::format("parallel.ep = {} must divide the {} ranks of dp x cp x tp; choose a divisor "
                    "of {}",
                    p.ep, stage, stage));
  }
  return {.tp = static_cast<int>(p.tp),
          .cp = static_cast<int>(p.cp),
          .dp = static_cast<int>(ranks / cuts),
          .pp = static_cast<int>(p.pp),
          .ep = static_cast<int>(p.ep),
          .dp_shard = static_cast<int>(p.dp_shard)};
}

void check_layout(const RunConfig& config, const model::ModelConfig& model, int ranks) {
  const ParallelConfig& p = config.parallel;
  check_optimizer(config, ranks);
  check_rounded(config, model);
  check_reduce(p);
  const int dp = mesh_extents(p, ranks).dp;
  check_copies(p, dp);
  check_between(p, dp, ranks);
  if (const auto cut = std::max({p.tp, p.cp, p.ep}); !model.lora.empty() && cut > 1) {
    refuse(
        fmt::format("parallel.{} = {} cuts matrices or rows, and adapters (lora.rank) are not cut; "
                    "use dp, whose "
                    "ranks can share weights too (zero = 3), or pp",
                    p.tp > 1   ? "tp"
                    : p.cp > 1 ? "cp"
                               : "ep",
                    cut));
  }
  if (model.lora.quantized_base && p.pp > 1) {
    refuse(
        fmt::format("parallel.pp = {} sends weights between stages, and those in 4 bits "
                    "(lora.quantize_base = nf4) stay on their rank; use dp, or leave "
                    "lora.quantize_base out",
                    p.pp));
  }
  require_divides("tp", p.tp, "model.heads", model.heads);
  require_divides("tp", p.tp, "model.kv_heads", model.kv_heads);
  require_divides("tp", p.tp, "model.ffn", model.ffn);
  if (p.ep > 1 && model.experts == 0) {
    refuse(fmt::format(
        "parallel.ep = {}: the model has no experts to share out; set model.experts, or leave "
        "parallel.ep out",
        p.ep));
  }
  require_divides("ep", p.ep, "model.experts", model.experts);
  check_context(p, model);
  const auto& names = kSchedules;
  if (!p.schedule.ends_with(".csv") &&
      std::find(std::begin(names), std::end(names), p.schedule) == std::end(names)) {
    refuse(fmt::format("parallel.schedule = {}: it is one of {}, or a file that ends in .csv{}",
                       p.schedule, fmt::join(names, ", "), did_you_mean(p.schedule, names)));
  }
  const int64_t layers = model.encoder_layers + model.decoder_layers;
  if (p.pp * p.chunks > layers) {
    refuse(
        fmt::format("parallel.pp = {} x parallel.chunks = {} runs of layers are more than the "
                    "model's {} layers; lower one of them",
                    p.pp, p.chunks, layers));
  }
}

void check_sums(const ParallelOptions& options, DType compute) {
  if (!options.coded_copies || compute != DType::f16) return;
  refuse(
      "parallel.reduce_between = int8 carries what it rounds into the next step, and fp16 changes "
      "the scale of gradients from step to step; take train.precision = bf16 or fp32, or leave out "
      "parallel.reduce_between");
}

ParallelOptions resolve_parallel(const ParallelConfig& p, int ranks) {
  const int automatic = ranks / p.pp > 1 ? 1 : 0;
  return {.zero = p.zero == "auto" ? automatic : std::stoi(p.zero),
          .schedule = p.schedule,
          .chunks = static_cast<int>(p.chunks),
          .recompute = p.recompute,
          .offload = p.offload,
          .reduce = p.reduce == "bf16" ? DType::bf16 : DType::f32,
          .coded_copies = p.reduce_between == "int8"};
}

std::string layout_text(const ParallelConfig& p, int ranks) {
  const parallel::MeshExtents e = mesh_extents(p, ranks);
  const ParallelOptions o = resolve_parallel(p, ranks);
  std::string text = fmt::format("dp={}", e.dp);
  const auto add = [&](const char* key, const auto& value, const auto& usual) {
    if (value != usual) text += fmt::format(",{}={}", key, value);
  };
  add("tp", e.tp, 1);
  if (e.tp > 1) add("tp_overlap", p.tp_overlap, 0);
  add("cp", e.cp, 1);
  if (e.cp > 1) add("cp_comm_type", p.cp_comm_type, "auto");
  add("pp", e.pp, 1);
  add("ep", e.ep, 1);
  add("zero", o.zero, 0);
  add("dp_shard", p.dp_shard == 0 ? e.dp : p.dp_shard, e.dp);
  if (e.pp > 1) add("schedule", o.schedule, "");
  add("chunks", o.chunks, 1);
  add("recompute", o.recompute, "auto");
  add("offload", o.offload, false);
  if (o.reduce == DType::bf16) text += ",reduce=bf16";
  if (o.coded_copies) text += ",reduce_between=int8";
  return text;
}

}  // namespace saturate::train
