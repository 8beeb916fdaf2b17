// SPDX-License-Identifier: Apache-2.0
// The whole configuration of a run as one tree of plain structs. config_keys.cpp lists every key
// once (range, choices, help); TOML, --set, help texts and checks are all made from that list.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace saturate {

// An amount of memory: "4GiB" or a number of bytes; 0 means no bound was given.
struct Bytes {
  int64_t value = 0;
  friend bool operator==(Bytes, Bytes) = default;
};

// What is not set comes from the preset.
struct ArchitectureConfig {
  std::string preset = "auto";
  std::optional<int64_t> d_model, encoder_layers, decoder_layers, heads, kv_heads, ffn,
      max_positions;
  std::optional<double> dropout, attention_dropout, activation_dropout, norm_eps;
  std::optional<std::string> norm, norm_position, activation, positions;
  std::optional<bool> gated, bias, tie_embeddings;
  std::vector<std::string> mixers;
  std::optional<int64_t> experts, experts_per_token, expert_every;
  std::optional<std::string> expert_routing;
  std::optional<double> capacity_factor, router_aux_loss, router_z_loss;
  friend bool operator==(const ArchitectureConfig&, const ArchitectureConfig&) = default;
};

// What a new run begins with instead of random weights.
struct InitConfig {
  std::string from;
  friend bool operator==(const InitConfig&, const InitConfig&) = default;
};

struct DataConfig {
  std::vector<std::string> train, valid;
  std::string valid_name = "valid";
  std::vector<std::string> more_valid, test;
  std::string format = "auto";
  std::vector<std::string> languages;
  std::string tokenizer = "auto";
  std::string tokenizer_type = "unigram";
  std::optional<int64_t> vocab_size;
  bool shared_vocabulary = true;
  double character_coverage = 1.0;
  int64_t tokenizer_sentences = 100000;
  std::optional<int64_t> max_length;
  double max_length_ratio = 0;
  bool skip_bad_lines = false;
  int64_t workers = 2;
  int64_t prefetch = 4;
  friend bool operator==(const DataConfig&, const DataConfig&) = default;
};

struct BatchConfig {
  int64_t target_tokens = 4096;
  int64_t source_tokens = 0;
  int64_t sequences = 0;
  int64_t accumulate = 1;
  friend bool operator==(const BatchConfig&, const BatchConfig&) = default;
};

struct OptimizerConfig {
  double lr = 5e-4;
  double beta1 = 0.9;
  double beta2 = 0.98;
  double eps = 1e-9;
  double weight_decay = 0.0;
  double clip_norm = 1.0;
  double ema_decay = 0.0;
  std::string kind = "adamw";
  double momentum = 0.95;
  bool relative = false;
  std::string moments = "fp32";
  std::vector<std::string> freeze;
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

// Adapters beside the projections of init.from, which alone train then.
struct LoraConfig {
  int64_t rank = 0;  // 0: none
  double alpha = 0;  // 0: as large as the rank
  std::vector<std::string> targets = {"all-linear"};
  double dropout = 0.0;
  bool rslora = false;
  std::string quantize_base = "none";
  friend bool operator==(const LoraConfig&, const LoraConfig&) = default;
};

struct ScheduleConfig {
  std::string kind = "inverse_sqrt";
  int64_t warmup_steps = 4000;
  int64_t total_steps = 0;
  double final_ratio = 0.0;
  double decay_fraction = 0.2;
  friend bool operator==(const ScheduleConfig&, const ScheduleConfig&) = default;
};

struct TrainConfig {
  std::string device = "auto";
  std::string precision = "auto";
  bool tf32 = false;
  std::string gemm_table = "auto";
  std::string attention_table = "auto";
  int64_t seed = 1;
  int64_t max_steps = 100000;
  int64_t max_epochs = 0;
  double max_seconds = 0;
  std::optional<double> label_smoothing;
  bool graph = true;
  bool packing = true;
  bool prefetch = true;
  int64_t stop_after_bad_steps = 10;
  Bytes memory;
  int64_t log_every = 100;
  int64_t restart = 0;
  friend bool operator==(const TrainConfig&, const TrainConfig&) = default;
};

// How the ranks share the work; the same on every rank. Every number but dp is an extent of the mesh.
struct ParallelConfig {
  int64_t dp = 0;  // 0: the ranks that the other axes leave
  int64_t tp = 1, pp = 1, cp = 1, ep = 1;
  int64_t tp_overlap = 0;
  std::string cp_comm_type = "auto";
  std::string zero = "auto";
  int64_t dp_shard = 0;  // neighbours in dp that share one copy; 0: all of dp
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  std::string recompute = "auto";
  bool offload = false;
  std::string reduce = "fp32";
  std::string reduce_between = "fp32";
  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

struct ValidateConfig {
  int64_t every_steps = 1000;
  int64_t every_epochs = 0;
  std::string metric = "bleu";
  int64_t patience = 10;
  int64_t beam = 1;
  int64_t max_sentences = 0;
  std::string beside = "auto";
  friend bool operator==(const ValidateConfig&, const ValidateConfig&) = default;
};

struct CheckpointConfig {
  int64_t every_steps = 0;
  double every_minutes = 15;
  int64_t keep_last = 2;
  int64_t keep_best = 1;
  friend bool operator==(const CheckpointConfig&, const CheckpointConfig&) = default;
};

struct TranslateConfig {
  int64_t beam = 5;
  double length_penalty = 1.0;
  double max_length_factor = 2.0;
  int64_t max_length_offset = 20;
  int64_t batch_tokens = 4096;
  friend bool operator==(const TranslateConfig&, const TranslateConfig&) = default;
};

struct RunConfig {
  InitConfig init;
  ArchitectureConfig model;
  DataConfig data;
  BatchConfig batch;
  OptimizerConfig optimizer;
  LoraConfig lora;
  ScheduleConfig schedule;
  TrainConfig train;
  ParallelConfig parallel;
  ValidateConfig validate;
  CheckpointConfig checkpoint;
  TranslateConfig translate;
  std::string out;
  bool resume = false;
  bool quiet = false;
  friend bool operator==(const RunConfig&, const RunConfig&) = default;
};

// Sets every key that `toml` names, leaves the others as they are; on an error `config` is
// unchanged. Errors: invalid_argument with source:line:column, what was given, what the key takes
// and, for an unknown key, the nearest known one.
void merge_toml(RunConfig& config, std::string_view toml, const std::string& source);

// The same from a file. Errors: io (cannot read), invalid_argument (above 1 MiB, or as above).
void merge_toml_file(RunConfig& config, const std::string& path);

// "section.key=value"; text needs no quotes, but TOML's are taken off; a list is as TOML writes it
// or its elements separated by commas. Errors: invalid_argument.
void set_key(RunConfig& config, std::string_view assignment);

// Several keys of [parallel] at once: "tp=2,zero=3", or "auto" for what saturate plan finds. Where it names
// an axis (dp, tp, cp, pp, ep), the axes that it does not name take their defaults. micro_batches
// stands for batch.accumulate. Also what set_key() and TOML take for the key `parallel`.
// Errors: invalid_argument.
void set_parallel(RunConfig& config, std::string_view text);

// Several keys of [lora] at once: "rank=16,alpha=32,targets=q_proj+v_proj,dropout=0.05,rslora". Also what
// set_key() takes for the key `lora`. Errors: invalid_argument.
void set_lora(RunConfig& config, std::string_view text);

// Rules between keys; call once the configuration is complete. Errors: invalid_argument.
void check_config(const RunConfig& config);

enum class TomlComments { no, yes };
// Every key with its value, as TOML that merge_toml reads back to an equal configuration. Keys that
// come from the preset appear as comments; resume and quiet, which are of one start and not of the
// run, appear only when they are set. With comments: help and range of each key.
std::string to_toml(const RunConfig& config, TomlComments comments = TomlComments::no);

// One line a key: name, default, range and help; the keys whose name starts with `prefix`.
std::string config_help(std::string_view prefix = "");

}  // namespace saturate
