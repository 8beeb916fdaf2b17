// SPDX-License-Identifier: Apache-2.0
// What main() hands to each command. A command returns the program's exit code and throws Error.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/dtype.h"
#include "base/exit_code.h"

namespace saturate {
struct Context;
namespace data {
class Tokenizer;
}
namespace kernels {
struct KernelOptions;
}
namespace train {
struct LoadedModel;
}
class Stream;
}  // namespace saturate

namespace saturate::apps {

// How a trained model is loaded and decoded; shared by translate, generate and eval.
struct ModelOptions {
  std::string model;    // folder of a run or of a Hugging Face model
  std::string adapter;  // folder of an adapter of it; empty: none, or that of `model`
  std::string device = "auto";
  std::string precision = "auto";
  std::optional<int> threads;  // of the CPU; else cpu_threads() decides
  bool ids = false;            // text is token ids
  bool quiet = false;
};

// What the command line says of decoding; the model says the rest.
struct DecodeOptions {
  std::optional<int64_t> beam, batch_tokens;
  std::optional<double> length_penalty;
  std::string source_language, target_language;  // of a multilingual model; empty: as its files say
};
// `model` with what was given put over it; says which values are used and whose they are.
TranslateConfig resolve_decoding(const DecodeOptions& given, const TranslateConfig& model);
// Errors: invalid_argument for a multilingual model whose languages neither it nor the flags name.
void require_languages(const train::LoadedModel& model, bool ids);

// The id that the piece has; `flag` names it in the error. Errors: invalid_argument (no such piece).
int32_t id_of_piece(const char* flag, const data::Tokenizer& tokenizer, const std::string& piece);

struct TranslateOptions {
  ModelOptions model;                     // but for its folder
  std::vector<std::string> models;        // that translate together, mostly one
  std::vector<double> weights;            // of each; none: all alike
  std::string input = "-", output = "-";  // - for standard input and output
  bool skip_bad_lines = false;            // a blank line stands for each
  int64_t nbest = 0;                      // 0: the best translation alone, without scores
  bool word_scores = false, json = false, same_bits = false;
  std::string prefix_file;            // empty: none
  std::string phrases;                // file; empty: none
  std::string first_piece;            // empty: none
  std::vector<std::string> suppress;  // pieces
  int64_t min_length = 0, max_length = 0, no_repeat_ngram = 0;
  double repetition_penalty = 1;
  int64_t alternatives = 0;  // 0: none
  int64_t beam_groups = 1;
  double diversity_penalty = 0.5;
  bool sampling = false;
  double temperature = 1, top_p = 1;
  int64_t top_k = 0;  // 0: all
  uint64_t seed = 1;
  bool alignments = false, attention = false;
  int64_t alignment_layer = -1, alignment_head = -1;  // -1: the last; all
  std::string shortlist;                              // file; empty: none
  int64_t shortlist_first = 100, shortlist_best = 100;
  DecodeOptions decode;
};

struct GenerateOptions {
  ModelOptions model;
  std::optional<std::string> prompt;        // empty or "-": standard input
  std::string prompts;                      // file with a prompt a line; empty: none
  std::vector<std::string> stop, suppress;  // texts that end it; pieces it may not hold
  bool json = false;
  std::string json_schema;  // file that continuations are held to; empty: none
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0, min_p = 0;
  int64_t no_repeat_ngram = 0, min_tokens = 0;
  double temperature = 1.0;  // 0: greedy
  int64_t top_k = 0;         // 0: all
  double top_p = 1.0;
  int64_t max_tokens = 128;
  int64_t samples = 1;
  uint64_t seed = 1;
};

struct ServeOptions {
  ModelOptions model;                   // but for its folder
  std::vector<std::string> models;      // [NAME=]DIR, or NAME=DIR,DIR
  std::vector<std::string> weights;     // [NAME=]NUMBER,..., of models of several folders
  std::vector<std::string> adapters;    // [NAME=]DIR, beside the language model
  std::vector<std::string> shortlists;  // [NAME=]FILE, of translation models
  int64_t shortlist_first = 100, shortlist_best = 100;
  std::vector<std::string> languages;  // [NAME=]SOURCE-TARGET
  std::string host = "127.0.0.1";
  int64_t port = 8000;               // 0: one that is free
  std::string keys;                  // file; empty: everybody may ask
  std::vector<std::string> origins;  // whose pages may ask from a browser
  int64_t queue = 4096;              // lines or sequences that may wait, of each model
  int64_t connections = 1024;
  int64_t max_body = int64_t{1} << 20;
  double timeout = 60, drain = 30;           // seconds: of an answer, of the end
  std::string chat_template;                 // empty: the folder's
  int64_t sequences = 8, max_length = 2048;  // of language models
  bool same_bits = false;                    // see model::TranslatorOptions
  DecodeOptions decode;
};

// merge, and export, which needs no adapter.
struct ExportOptions {
  std::string model, adapter, out;
  std::string dtype = "fp32";
  std::optional<int64_t> max_shard;      // bytes
  std::vector<std::string> others = {};  // whose weights are averaged with those of `model`
};

struct QuantizeOptions {
  std::string model, out;         // folders
  std::vector<std::string> test;  // source and reference, to score before and after; none: not
  std::optional<int> threads;     // of the CPU; else cpu_threads() decides
  DecodeOptions decode;
};

struct ShortlistOptions {
  std::string model;  // folder
  std::string source, target, output = "-";
  int64_t common = 100, best = 50;
  int64_t lines = 200'000;  // that are read at most
};

struct PanelsOptions {
  std::string model;  // folder
  std::string precision = "auto";
  bool remove = false;
  std::optional<int> threads;  // of the CPU; else cpu_threads() decides
};

struct EvalOptions {
  ModelOptions model;             // empty when only a hypothesis file is scored
  std::vector<std::string> test;  // source and reference; the text of a language model
  std::string format = "auto";    // of a language model's text
  bool score = false;             // log-probabilities of the lines of `test`
  std::string hypothesis, reference;
  std::string output;  // where translations go; empty: nowhere
  DecodeOptions decode;
};

struct BenchOptions {
  std::string what;  // step, gemm, attention or links
  RunConfig config;
  bool operations = false;     // step: times each operation of its list
  bool roofline = false;       // step: each operation against the least time it could take
  int devices = 1;             // step --operations: ranks of the layout, of which one is run
  std::string machine;         // links, step --operations: machine file to write or extend;
                               // --roofline: whose rates count, or empty
  int64_t length = 32;         // tokens of a synthetic sentence
  int64_t repeats = 30;        // timed steps or launches
  double skew = 0;             // step: exponent of the law by which tokens prefer experts
  std::vector<int64_t> shape;  // gemm: m n k; attention: batch heads length head_size
  bool causal = false;
  // gemm: every fp32 rung against cuBLASLt; attention: every implementation that fits
  bool ladder = false;
  std::vector<int64_t> sizes = {128, 256, 512, 1024, 2048, 4096, 8192};  // its cubes or lengths
  std::string plot = "ladder.svg", json = "ladder.jsonl";                // empty: not written
  std::string peers;    // attention: times of others to put beside, or empty
  std::string against;  // another program, or a file of rows, to compare with; or empty
  int64_t rounds = 7;   // turns of that comparison
  std::vector<std::string> arguments;  // all that was given behind `bench`
};

struct CompareOptions {
  std::vector<std::string> layouts;  // two, as --parallel takes them
  RunConfig config;
  int64_t length = 32;  // tokens of the longest synthetic sentence
  int64_t steps = 3;
};

struct PlanOptions {
  RunConfig config;
  std::string model;              // folder whose model is planned for; empty: that of `config`
  std::string machine;            // file or name; empty: this machine, measured
  std::optional<int64_t> length;  // tokens of a sentence
  int devices = 1;
  int rows = 10;          // of the table
  std::string launcher;   // empty: torchrun for GPUs, mpirun for CPUs
  std::string layout;     // the only one to plan; empty: all
  std::string timeline;   // where the fastest layout's step goes; empty: nowhere
  double mtbf_hours = 0;  // of one device; 0: the machine's
  double checkpoint_minutes = 0;
  int64_t check_steps = 20;
  bool check = false, json = false;
};

struct TuneOptions {
  std::string what;                 // gemm or attention
  std::vector<std::string> shapes;  // "MxNxK", "SxHxLxD"; empty: those of the benchmarks
  std::string dtype = "f32";        // f32, bf16 or f16
  std::string layout = "training";  // NN, NT, TN, TT, or the three products of a linear layer
  std::string device = "auto";
  std::string output;  // the table; empty: the user's cache
  bool tf32 = false, bias = false;
  bool exhaustive = false;
  bool explain = false;                  // only list the parameter sets and why they are refused
  bool all = false;                      // also print every candidate
  bool causal = false, dropout = false;  // attention
  int64_t kv_heads = 0;                  // attention; 0: as many as heads
  int64_t longest = 0;  // attention: rows of the longest sequence; 0: the mean length
};

struct QuickstartDataOptions {
  std::string out;
  int64_t pairs = 40000;
  int64_t held_out = 1000;
  uint64_t seed = 1;
};

struct DoctorOptions {
  std::string file;                // a capture
  std::vector<std::string> ranks;  // or those of several ranks: files and folders
  bool watch = false;              // run `command` and watch it
  std::vector<std::string> command;
  std::string keep, cupti, library;  // with a command: see LaunchOptions
  double delay_s = 0, duration_s = 0;
  bool memory = false;
  bool graph_nodes = false;          // record the kernels in graphs
  bool fix_trial = false;            // run it again with each remedy that its environment can apply
  double trial_limit_s = 0;          // of one such run; 0: three times the first, and a minute
  std::vector<std::string> compare;  // or two of them
  std::vector<std::string> fail_if;  // "step>3%"
  std::string format = "text";       // text, json, html or perfetto
  std::string output;                // empty: standard output
  std::optional<int64_t> warm_up;    // steps to leave out; empty: found
  double step_ms = 0;                // of a step without recording; 0: not known
};

struct TopOptions {
  bool once = false, json = false, follow = false;
  bool ascii = false, no_colour = false, read_only = false, tree = false;
  double interval = 1;        // seconds
  std::vector<int> gpus;      // empty: all
  std::vector<int64_t> pids;  // empty: all
  std::vector<std::string> users;
  std::string filter;
  std::string prometheus;  // [HOST:]PORT; empty: not asked for
  std::string proc = "/proc";
};

struct CheckOptions {
  bool json = false;
  std::string proc = "/proc";
};

// `doctor --pid`
struct DoctorPidOptions {
  int64_t pid = 0;
  double duration = 5;  // seconds
  bool json = false;
  std::string output;  // empty: standard output
  std::string proc = "/proc";
};

struct LabOptions {
  enum class Verb { list, run, compare } verb = Verb::list;
  std::string program;
  std::string device = "auto";
  int64_t steps = 100;
  bool remedy = false;  // run the repaired variant
  bool json = false;
};

int run_train(const RunConfig& config);
int run_translate(const TranslateOptions& options);
int run_generate(const GenerateOptions& options);
int run_serve(const ServeOptions& options);
int run_quantize(const QuantizeOptions& options);
int run_shortlist(const ShortlistOptions& options);
int run_panels(const PanelsOptions& options);
int run_eval(const EvalOptions& options);
int run_merge(const ExportOptions& options);
int run_export(const ExportOptions& options);
int run_bench(const BenchOptions& options);
void run_bench_attention(const BenchOptions& options, const kernels::KernelOptions& kernels,
                         const Context& ctx, const Stream& stream, DType type);
int run_bench_attention_ladder(const BenchOptions& options, const Context& ctx,
                               const Stream& stream);
int run_bench_ladder(const BenchOptions& options, const Context& ctx, const Stream& stream);
// A small model and batch, where nothing is given.
RunConfig compare_defaults();
int run_compare(const CompareOptions& options);
int run_bench_links(const BenchOptions& options);
int run_bench_operations(const BenchOptions& options);
int run_bench_roofline(const BenchOptions& options);
int run_plan(const PlanOptions& options);
int run_tune(const TuneOptions& options);
int run_tune_attention(const TuneOptions& options);
int run_doctor(const DoctorOptions& options);
int run_doctor_pid(const DoctorPidOptions& options);
int run_top(const TopOptions& options);
int run_check(const CheckOptions& options);
int run_lab(const LabOptions& options);
// all_kernels: prints what runs where instead (docs/reference/support.md).
int run_info(bool all_kernels);
int run_quickstart_data(const QuickstartDataOptions& options);

}  // namespace saturate::apps
