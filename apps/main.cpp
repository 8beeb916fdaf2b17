// SPDX-License-Identifier: Apache-2.0
// The command line: flags to options, errors to exit codes. With usage.cpp, model_flags.cpp and
// command_line.h the only file that sees CLI11.
#include <fcntl.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <new>
#include <system_error>

#include "apps/bench_against.h"
#include "apps/command_line.h"
#include "apps/commands.h"
#include "apps/config_flags.h"
#include "apps/model_flags.h"
#include "apps/process_limits.h"
#include "apps/restart.h"
#include "apps/usage.h"
#include "base/config.h"
#include "base/error.h"
#include "base/features.h"
#include "base/log.h"
#include "base/text.h"
#include "runtime/parallel_for.h"
#include "train/run_settings.h"

namespace saturate::apps {
namespace {

struct Program {
  CLI::App app{"Trains Transformers for translation and language modelling, and uses them.",
               "saturate"};
  ConfigFlags train_flags, bench_flags, compare_flags, plan_flags;
  bool resume = false, quiet = false, print_config = false, help_config = false;
  bool all_kernels = false;
  TranslateOptions translate;
  GenerateOptions generate;
  ServeOptions serve;
  EvalOptions eval;
  ExportOptions merge, exported;
  QuantizeOptions quantize;
  ShortlistOptions shortlist;
  PanelsOptions panels;
  BenchOptions bench;
  CompareOptions layouts;
  PlanOptions plan;
  TuneOptions tune;
  QuickstartDataOptions quickstart;
  DoctorOptions doctor;
  DoctorPidOptions doctor_pid;
  TopOptions top;
  CheckOptions check;
  LabOptions lab;
  CLI::App *train_command, *translate_command, *generate_command, *eval_command, *info_command,
      *bench_command, *compare_command, *plan_command, *tune_command, *quickstart_command,
      *doctor_command, *top_command, *check_command, *lab_command, *serve_command, *merge_command,
      *quantize_command, *export_command, *shortlist_command, *panels_command;

  Program() {
    app.set_version_flag("--version", "saturate " SATURATE_VERSION);
    app.require_subcommand(1);
    app.footer(
        R"(Start with: saturate train --train corpus.en corpus.de --valid val.en val.de --out runs/ende
then:       saturate translate --model runs/ende < text.en > text.de
Each command explains itself: saturate train --help)");
    define_train();
    translate_command = define_translate(app, translate);
    generate_command = define_generate(app, generate);
    serve_command = define_serve(app, serve);
    define_eval();
    merge_command = define_merge(app, merge);
    export_command = define_export(app, exported);
    quantize_command = add_quantize_command(app, quantize);
    shortlist_command = define_shortlist(app, shortlist);
    panels_command = define_panels(app, panels);
    define_bench();
    define_compare();
    plan_command = define_plan(app, plan, plan_flags);
    define_tune();
    define_doctor();
    define_top();
    define_check();
    lab_command = define_lab(app, lab);
    info_command =
        app.add_subcommand("info", "print the build, the devices and the libraries found");
    info_command->add_flag("--kernels", all_kernels,
                           "print instead which operation, type and feature runs on which device");
    info_command->footer("Example:\n  saturate info");
    quickstart_command = app.add_subcommand(
        "quickstart-data", "write the English-Portuguese corpus of the quickstart");
    quickstart_command
        ->add_option("--out", quickstart.out, "folder for train, valid and test, .en and .pt")
        ->required()
        ->type_name("DIR");
    quickstart_command->add_option("--pairs", quickstart.pairs, "training pairs")
        ->check(whole_range(0, INT64_MAX))
        ->capture_default_str();
    quickstart_command->add_option("--held-out", quickstart.held_out, "test pairs")
        ->check(whole_range(0, INT64_MAX))
        ->capture_default_str();
    quickstart_command->add_option("--seed", quickstart.seed, "start of the random numbers")
        ->check(whole_range(0, INT64_MAX))
        ->capture_default_str();
    quickstart_command->footer(
        "Example:\n  saturate quickstart-data --out data/quickstart --pairs 40000");
    last_one_counts(app);
  }

  // Of a flag that takes one value and is given again the last one counts, in every command: what
  // is appended to a script's command overrides it. Lists go on, and what has no dashes is refused.
  static void last_one_counts(CLI::App& command) {
    for (CLI::Option* o : command.get_options([](const CLI::Option* each) {
           return each->nonpositional() && each->get_items_expected_max() == 1;
         }))
      o->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    for (CLI::App* inner : command.get_subcommands([](CLI::App*) { return true; }))
      last_one_counts(*inner);
  }

  void define_train() {
    train_command = app.add_subcommand("train", "train a translation model or a language model");
    CLI::App& c = *train_command;
    add_config_file(c, train_flags);
    c.add_option("--train", train_flags.train,
                 "training text: source and target file, or one TSV, JSONL or text file")
        ->type_name("FILE...");
    c.add_option("--valid", train_flags.valid,
                 "validation text, in the same form; may be given again for further sets, of which "
                 "the first decides what is best")
        ->type_name("[NAME=]FILE...")
        ->inject_separator();
    c.add_option("--test", train_flags.test,
                 "test text, scored with the best model at the end; may be given again")
        ->type_name("[NAME=]FILE...")
        ->inject_separator();
    c.add_flag_callback(
        "--skip-bad-lines", [this] { train_flags.shorthand.push_back("data.skip_bad_lines=true"); },
        "leave out lines that are no text or lack a field, and count them (data.skip_bad_lines)");
    add_key(c, train_flags, "--out", "out", "folder of the run");
    add_key(c, train_flags, "--init-from", "init.from",
            "start from this run or Hugging Face model: fine-tuning");
    add_key(
        c, train_flags, "--lora", "lora",
        "train adapters beside the model of --init-from, as rank=16,alpha=32,targets=q_proj+v_proj "
        "[all-linear]");
    add_key(c, train_flags, "--quantize-base", "lora.quantize_base",
            "nf4: hold what adapters lie beside in 4 bits (QLoRA)");
    add_key(c, train_flags, "--preset", "model.preset",
            "shape of the model: tiny, base, big, gpt2-124m, ...");
    add_key(c, train_flags, "--device", "train.device", "auto, cpu, cuda or cuda:N");
    add_key(c, train_flags, "--precision", "train.precision",
            "auto, fp32, bf16, fp16, fp8, mxfp8 or nvfp4");
    add_key(c, train_flags, "--steps", "train.max_steps", "stop after this many steps");
    add_key(c, train_flags, "--epochs", "train.max_epochs",
            "stop after this many passes over the data");
    add_key(c, train_flags, "--seconds", "train.max_seconds", "stop after this time");
    add_key(c, train_flags, "--batch", "batch.target_tokens", "target tokens of a batch");
    add_key(c, train_flags, "--lr", "optimizer.lr", "highest learning rate");
    add_key(c, train_flags, "--restart", "train.restart",
            "begin again from the last checkpoint after a failure, so many times");
    add_key(c, train_flags, "--memory", "train.memory", "device memory to use, as 4GiB");
    add_key(c, train_flags, "--seed", "train.seed", "start of all random numbers");
    add_key(c, train_flags, "--parallel", "parallel",
            "how ranks share the work, as tp=2,zero=3; auto: the plan's fastest; default: data "
            "parallel");
    c.add_flag("--resume", resume,
               "continue the run in --out from its last checkpoint, with its own settings; "
               "flags given beside go before them");
    c.add_flag("--quiet", quiet, "no progress lines");
    c.add_flag("--print-config", print_config,
               "print the configuration as TOML, each key explained, and stop");
    c.add_flag("--help-config", help_config, "list every key with its range, and stop");
    c.footer(R"(Examples:
  saturate train --train corpus.en corpus.de --valid val.en val.de --out runs/ende
  saturate train --train corpus.tsv.gz --valid val.tsv --out runs/small --preset tiny --steps 5000
  saturate train --train corpus.en corpus.de --valid val.en val.de --valid web=web.en web.de --test t16.en t16.de --out runs/ende
  saturate train --config examples/multi30k-ende.toml --set optimizer.lr=3e-4
  saturate train --train text.txt --preset gpt2-124m --out runs/lm
  saturate train --init-from runs/ende --train new.en new.de --lr 1e-4 --out runs/tuned
  saturate train --init-from runs/ende --lora rank=16 --train new.en new.de --lr 2e-4 --out runs/legal
  mpirun -n 4 saturate train --config run.toml            # four ranks, one run
  torchrun --nproc-per-node 4 --no-python saturate train --config run.toml --parallel tp=2
  saturate train --resume --out runs/ende                 # go on, with the run's settings
Ctrl-C saves and stops; of a flag given twice the last one counts.)");
  }

  void define_eval() {
    eval_command = app.add_subcommand(
        "eval", "score a model on a test set, or a translation against its reference");
    CLI::App& c = *eval_command;
    add_model_options(c, eval.model);
    auto* test = c.add_option("--test", eval.test,
                              "source and reference, to translate and score; the text of a "
                              "language model")
                     ->type_name("FILE...")
                     ->expected(1, 2);
    c.add_option(
         "--format", eval.format,
         "how a language model's text is read: a document a line, a file, or under \"text\" in "
         "JSONL; auto: .jsonl as JSONL, others as the run was trained on, else (and for --score) "
         "lines")
        ->check(CLI::IsMember({"auto", "lines", "stream", "jsonl"}))
        ->capture_default_str();
    c.add_flag(
         "--score", eval.score,
         "a line for each of --test (of a document): its log-probability under the model, and its "
         "tokens")
        ->needs(test);
    auto* hyp = c.add_option("--hyp", eval.hypothesis, "translation to score; needs no model")
                    ->type_name("FILE");
    c.add_option("--ref", eval.reference, "its reference")->type_name("FILE")->needs(hyp);
    hyp->needs("--ref")->excludes(test)->excludes("--model");
    c.add_option(
         "--output", eval.output,
         "also write the translations here; with --score the scores, and not to standard output")
        ->type_name("FILE");
    add_decode_options(c, eval.decode);
    c.footer(R"(Examples:
  saturate eval --model runs/ende --test test.en test.de
  saturate eval --hyp test.out.de --ref test.de
  saturate eval --model runs/lm --test test.txt                 # perplexity
  saturate eval --model gpt2 --test test.txt --format stream    # of the whole file
  saturate eval --model runs/ende --score --test test.en test.de
BLEU and chrF are those of sacreBLEU; their signatures are printed with them. Without --beam
and the like the model decodes as [translate] of its run says.)");
  }

  void define_bench() {
    bench_command =
        app.add_subcommand("bench", "measure training steps, matrix products, attention or links");
    CLI::App& c = *bench_command;
    c.add_option("what", bench.what, "step, gemm, attention or links (between the ranks at hand)")
        ->check(CLI::IsMember({"step", "gemm", "attention", "links"}));
    add_config_file(c, bench_flags);
    add_key(c, bench_flags, "--preset", "model.preset", "shape of the model");
    add_key(c, bench_flags, "--device", "train.device", "auto, cpu, cuda or cuda:N");
    add_key(c, bench_flags, "--precision", "train.precision",
            "auto, fp32, bf16, fp16, fp8, mxfp8 or nvfp4");
    add_key(c, bench_flags, "--batch", "batch.target_tokens", "target tokens of a batch");
    add_key(c, bench_flags, "--memory", "train.memory", "step: device memory to use, as 4GiB");
    add_key(c, bench_flags, "--parallel", "parallel",
            "how ranks share a step, as tp=2,zero=3, or auto");
    c.add_option("--length", bench.length, "step: tokens of a sentence")
        ->check(whole_range(2, 1 << 20))
        ->capture_default_str();
    CLI::Option* operations = c.add_flag("--operations", bench.operations,
                                         "step: the time of each operation of its list instead");
    c.add_flag("--roofline", bench.roofline,
               "step: each operation's time beside the least that its multiplications and bytes "
               "could take on this device, largest gap first")
        ->excludes(operations);
    c.add_option("--devices", bench.devices,
                 "--operations: ranks that --parallel is for; one is run, without the others")
        ->needs(operations)
        ->check(whole_range(1, 65536))
        ->capture_default_str();
    c.add_option("--machine", bench.machine,
                 "links and --operations: machine file to write, or to extend, for saturate plan; "
                 "--roofline: machine whose rates count instead of those measured here")
        ->type_name("FILE");
    c.add_option(
         "--skew", bench.skew,
         "step: tokens prefer experts by about Zipf's law with this exponent; largest_share "
         "in the result says what came of it")
        ->excludes(operations)
        ->check(real_range(0.0, 8.0))
        ->capture_default_str();
    c.add_option("--repeats", bench.repeats, "timed repetitions; the median is printed")
        ->check(whole_range(1, 1000000))
        ->capture_default_str();
    c.add_option("--shape", bench.shape, "gemm: M N K; attention: batch heads length head_size")
        ->type_name("INT...")
        ->check(whole_range(1, 1 << 24));
    c.add_flag("--causal", bench.causal, "attention: causal mask");
    CLI::Option* ladder =
        c.add_flag("--ladder", bench.ladder,
                   "gemm: every fp32 kernel from naive to tuned against cuBLASLt; attention: every "
                   "implementation that fits, in every precision");
    c.add_option("--sizes", bench.sizes, "ladder: cubes, or lengths, to measure")
        ->needs(ladder)
        ->type_name("INT...")
        ->check(whole_range(1, 1 << 15))
        ->capture_default_str();
    c.add_option("--plot", bench.plot, "ladder: picture to write (SVG)")
        ->needs(ladder)
        ->capture_default_str();
    c.add_option("--json", bench.json, "ladder: measurements to write (JSON lines)")
        ->needs(ladder)
        ->capture_default_str();
    c.add_option("--peers", bench.peers,
                 "ladder of attention: others' times to put beside, a file of JSON lines from "
                 "bench/peers/pytorch_attention.py")
        ->needs(ladder)
        ->type_name("FILE");
    CLI::Option* against = c.add_option(
        "--against", bench.against,
        "compare in turns with another program, or with a file of rows; ends with code 1 "
        "when something is slower beyond noise");
    against->type_name("FILE")->excludes(ladder);
    c.add_option("--rounds", bench.rounds, "--against: turns; each measures everything once")
        ->needs(against)
        ->check(whole_range(kFewestRounds, 1000))
        ->capture_default_str();
    c.footer(R"(Examples:
  saturate bench step --preset base --batch 25088 --length 32
  saturate bench step --preset gpt2-124m --batch 32768 --length 1024
  saturate bench step --preset base --batch 25088 --operations --machine here.toml
  saturate bench step --preset base --batch 25088 --roofline
  torchrun --nproc-per-node 4 --no-python saturate bench links --machine here.toml
  saturate bench gemm --shape 4096 4096 4096 --precision bf16
  saturate bench gemm --ladder --sizes 1024 2048 4096
  saturate bench attention --shape 8 16 2048 128 --causal
  saturate bench attention --ladder --shape 4 16 1024 64 --sizes 512 1024 2048
  saturate bench attention --ladder --shape 4 16 1024 64 --sizes 1024 --peers p.jsonl
  saturate bench gemm --shape 4096 4096 4096 --against ../before/saturate
  saturate bench --against rows.jsonl        # again what these rows measured
step_ms, p10_ms and p90_ms of a step: median and percentiles over --repeats steps back to
back, from the end of one to the end of the next; the rates are those of the median.)");
  }

  void define_compare() {
    compare_command = app.add_subcommand(
        "compare", "run two layouts of one model for a few steps and say where they differ first");
    CLI::App& c = *compare_command;
    c.add_option("--layout", layouts.layouts, "how ranks share the work, as tp=2,zero=3; twice")
        ->required()
        ->expected(1, 2)
        ->allow_extra_args(false)
        ->type_name("LAYOUT");
    add_config_file(c, compare_flags);
    add_key(c, compare_flags, "--preset", "model.preset", "shape of the model [tiny]");
    add_key(c, compare_flags, "--device", "train.device", "auto, cpu, cuda or cuda:N");
    add_key(c, compare_flags, "--precision", "train.precision", "auto (fp64 on a CPU), fp32, ...");
    add_key(c, compare_flags, "--batch", "batch.target_tokens", "rows of a batch [128]");
    c.add_option("--length", layouts.length, "tokens of the longest sentence")
        ->check(whole_range(2, 1 << 20))
        ->capture_default_str();
    c.add_option("--steps", layouts.steps, "steps of each layout")
        ->check(whole_range(1, 1000))
        ->capture_default_str();
    c.footer(R"(Examples:
  saturate compare --layout dp=2 --layout tp=2
  saturate compare --layout dp=1 --layout pp=2,schedule=gpipe --preset gpt2-124m --batch 128
  torchrun --nproc-per-node 2 --no-python saturate compare --layout dp=1 --layout dp=2,zero=3
Without a launcher the ranks are threads of this process, which compute in fp64 on the CPU.
Ends with code 1 when the layouts differ.)");
  }

  void define_tune() {
    tune_command = app.add_subcommand(
        "tune",
        "measure the implementations of matrix products or attention, remember the fastest");
    CLI::App& c = *tune_command;
    c.add_option("what", tune.what, "gemm or attention")
        ->required()
        ->check(CLI::IsMember({"gemm", "attention"}));
    c.add_option("--shapes", tune.shapes,
                 "gemm: MxNxK of a linear layer's output; attention: "
                 "SEQUENCESxHEADSxLENGTHxHEAD_SIZE; separated by commas")
        ->type_name("SHAPE,...")
        ->delimiter(',');
    c.add_option("--dtype", tune.dtype, "f32, bf16 or f16")
        ->check(CLI::IsMember({"f32", "bf16", "f16"}))
        ->capture_default_str();
    c.add_option("--layout", tune.layout,
                 "training: forward and both gradients of a linear layer; or one of NN, NT, TN, TT")
        ->check(CLI::IsMember({"training", "NN", "NT", "TN", "TT"}))
        ->capture_default_str();
    c.add_flag("--tf32", tune.tf32, "f32 operands may be rounded to 10-bit mantissas");
    c.add_flag("--bias", tune.bias, "the product adds a bias");
    c.add_flag("--exhaustive", tune.exhaustive, "measure every candidate well: minutes a shape");
    c.add_flag("--explain", tune.explain,
               "list every parameter set with the reason it is refused, and stop");
    c.add_flag("--causal", tune.causal, "attention: causal mask");
    c.add_flag("--dropout", tune.dropout, "attention: with dropout");
    c.add_option("--kv-heads", tune.kv_heads, "attention: key heads; 0: as many as heads")
        ->check(whole_range(0, 1 << 16));
    c.add_option("--longest", tune.longest,
                 "attention: rows of the longest sequence; 0: all have LENGTH")
        ->check(whole_range(0, 1 << 24));
    c.add_flag("--all", tune.all, "print every candidate with its time, and every refusal");
    c.add_option("--device", tune.device, "auto, cuda or cuda:N")->capture_default_str();
    c.add_option("--output", tune.output, "table to write; default: in the user's cache folder")
        ->type_name("FILE");
    c.footer(R"(Examples:
  saturate tune gemm --dtype bf16
  saturate tune gemm --dtype f32 --layout NN --shapes 2048x2048x2048,4096x4096x4096
  saturate tune gemm --explain | tail
  saturate tune attention --dtype bf16 --causal --shapes 32x12x1024x64
The table lies in $SATURATE_CACHE, $XDG_CACHE_HOME/saturate or ~/.cache/saturate.)");
  }

  void define_top() {
    top_command = app.add_subcommand("top", "show the GPUs and what their processes do, live");
    CLI::App& c = *top_command;
    c.add_flag("--once,-1", top.once, "print one view and stop");
    c.add_flag("--json", top.json, "print one view as JSON and stop");
    c.add_flag("--follow", top.follow, "with --json: one line every interval, until interrupted")
        ->needs("--json");
    c.add_option("--interval,-i", top.interval, "seconds between two views")
        ->check(real_range(0.25, 3600.0))
        ->capture_default_str();
    c.add_option("--gpu,-g", top.gpus, "only these GPUs, as 0,1")
        ->delimiter(',')
        ->type_name("INDEX,...")
        ->check(whole_range(0, 1023));
    c.add_option("--pid,-p", top.pids, "only these processes")
        ->delimiter(',')
        ->type_name("PID,...")
        ->check(whole_range(1, 1 << 22));
    c.add_option("--user,-u", top.users, "only processes of these users")
        ->delimiter(',')
        ->type_name("NAME,...");
    c.add_option("--filter", top.filter,
                 "only processes whose pid, user, command or verdict contains this")
        ->type_name("TEXT");
    c.add_flag("--tree,-t", top.tree, "also the descendants of each process");
    c.add_flag("--ascii,-U", top.ascii, "no characters outside ASCII");
    c.add_flag("--no-color,-C", top.no_colour,
               "no colours; NO_COLOR in the environment does it too");
    c.add_flag("--readonly", top.read_only, "no key kills a process");
    c.add_option("--prometheus", top.prometheus,
                 "export metrics over HTTP at /metrics; without HOST only to this machine")
        ->type_name("[HOST:]PORT")
        ->excludes("--once")
        ->excludes("--json");
    c.add_option("--proc", top.proc, "where /proc is mounted")
        ->check(CLI::ExistingDirectory)
        ->capture_default_str();
    c.footer(R"(Examples:
  saturate top                       # h lists the keys, q ends
  saturate top --once --tree
  saturate top --json | jq '.gpus[].sm_active_percent'
  saturate top --prometheus :9400
GPM counters (SM, tensor, DRAM) need Hopper or later. What is not known is N/A or null,
never 0. A verdict with a question mark is a guess that `saturate doctor` can settle.)");
  }

  void define_check() {
    check_command = app.add_subcommand(
        "check", "say whether this machine is ready to be observed, with remedies");
    check_command->add_flag("--json", check.json, "print the findings as JSON");
    check_command->add_option("--proc", check.proc, "where /proc is mounted")
        ->check(CLI::ExistingDirectory)
        ->capture_default_str();
    check_command->footer(
        "Example:\n  saturate check\n"
        "Each line is OK, WARN, FAIL or SKIP. The exit code is 1 when a line is FAIL.");
  }

  // Refuses what was given and would be ignored.
  void check_doctor_options() const {
    const auto refuse = [&](std::initializer_list<const char*> names, const char* why) {
      for (const char* name : names)
        if (doctor_command->get_option(name)->count() > 0)
          throw Error(Errc::invalid_argument, "doctor", fmt::format("{} {}", name, why));
    };
    for (const char* name : {"--keep", "--output", "--cupti", "--library"})
      if (const CLI::Option* given = doctor_command->get_option(name);
          given->count() > 0 && given->as<std::string>().empty())
        throw Error(Errc::invalid_argument, "doctor",
                    fmt::format("{} is empty; give it a name, or leave it out", name));
    const auto watched = {"--keep",  "--delay",   "--memory",   "--graph-nodes",
                          "--cupti", "--library", "--fix-trial"};
    if (!doctor.compare.empty()) {
      if (!doctor.file.empty())
        throw Error(Errc::invalid_argument, "doctor",
                    doctor.file + " stands before compare; give its two traces after that word");
      refuse({"--output", "--warmup"}, "stands before compare; give it after that word");
      const char* why = "does not go with compare; leave it out";
      refuse(watched, why);
      refuse({"--duration", "--pid", "--step-ms", "--format", "--ranks"}, why);
      return;
    }
    if (doctor.format == "perfetto" && doctor.output.empty() && doctor_pid.pid == 0)
      throw Error(
          Errc::invalid_argument, "doctor",
          "a Perfetto trace is no text; give it a file: --format perfetto -o trace.pftrace");
    if (!doctor.ranks.empty() && (doctor.watch || !doctor.file.empty() || doctor_pid.pid > 0))
      throw Error(Errc::invalid_argument, "doctor",
                  "--ranks takes the captures of all ranks, and no other trace, command or --pid "
                  "goes with it; a watched command's ranks are found without it");
    if (doctor.fix_trial && doctor.format != "text" && doctor.format != "json")
      throw Error(
          Errc::invalid_argument, "doctor",
          fmt::format("--fix-trial has no {} report; use --format text or json", doctor.format));
    if (!doctor.fix_trial) refuse({"--trial-limit"}, "is of --fix-trial; leave it out");
    if (doctor.watch) return;
    refuse(watched, "needs a command to watch: saturate doctor ... -- python train.py");
    if (doctor_pid.pid > 0)
      refuse({"--warmup", "--step-ms"}, "needs a trace or a command; with --pid no step is seen");
    else
      refuse({"--duration"}, "needs a command to watch, after --, or --pid");
  }

  int doctor_of_pid() {
    if (!doctor.file.empty() || doctor.watch)
      throw Error(Errc::invalid_argument, "doctor",
                  "give a trace, a command or --pid, one of the three");
    if (doctor.duration_s > 0) doctor_pid.duration = doctor.duration_s;
    if (doctor_pid.duration < 0.5 || doctor_pid.duration > 3600)
      throw Error(Errc::invalid_argument, "doctor",
                  "--duration with --pid must lie between 0.5 and 3600 seconds");
    if (doctor.format != "text" && doctor.format != "json")
      throw Error(Errc::invalid_argument, "doctor",
                  fmt::format("--pid has no {} report; use --format text or json", doctor.format));
    doctor_pid.json = doctor.format == "json";
    doctor_pid.output = doctor.output;
    return run_doctor_pid(doctor_pid);
  }

  void define_doctor() {
    doctor_command =
        app.add_subcommand("doctor", "say where the GPU's time went and what would win it back");
    CLI::App& c = *doctor_command;
    c.add_option(
         "file", doctor.file,
         "trace of torch.profiler (.json, .json.gz), SQLite export of Nsight Systems, or what "
         "--keep kept; or a command to run and watch, after --")
        ->type_name("TRACE");
    c.add_option("--ranks", doctor.ranks,
                 "captures of all ranks of one program: traces, or folders of them")
        ->type_name("TRACE|DIR")
        ->expected(1, -1);
    c.add_option("--format", doctor.format,
                 "text, json, html (one page on its own) or perfetto (for ui.perfetto.dev)")
        ->check(CLI::IsMember({"text", "json", "html", "perfetto"}))
        ->capture_default_str();
    c.add_option("--output,-o", doctor.output,
                 "file to write; default: standard output, with a command standard error")
        ->type_name("FILE");
    c.add_option("--keep", doctor.keep, "with a command: folder to keep the capture in")
        ->type_name("DIR");
    c.add_option("--delay", doctor.delay_s, "with a command: capture from this second on")
        ->check(real_range(0.0, 1e6));
    c.add_option(
         "--duration", doctor.duration_s,
         "with a command: capture so many seconds [to the end]; with --pid: sample for so long [5]")
        ->check(real_range(1e-3, 1e6));
    c.add_flag("--memory", doctor.memory,
               "with a command: also follow what it allocates, and say what its waits wait for");
    c.add_flag(
        "--graph-nodes", doctor.graph_nodes,
        "with a command: record each kernel of CUDA graphs, which costs more than a graph at "
        "a time");
    c.add_flag("--fix-trial", doctor.fix_trial,
               "with a command: run it again with each remedy that its environment can apply, and "
               "set what was promised beside what was gained");
    c.add_option("--trial-limit", doctor.trial_limit_s,
                 "with --fix-trial: seconds after which a run is ended [3 times the first, and 60]")
        ->check(real_range(0.1, 1e7))
        ->type_name("S");
    c.add_option("--cupti", doctor.cupti, "with a command: the libcupti to use [the program's own]")
        ->type_name("FILE");
    c.add_option("--library", doctor.library, "with a command: libsaturate_capture.so [found]")
        ->type_name("FILE");
    c.add_option("--warmup", doctor.warm_up, "steps to leave out at the start [found]")
        ->check(whole_range(0, 1 << 30));
    c.add_option("--pid", doctor_pid.pid, "sample this running process from outside")
        ->check(whole_range(1, 1 << 22));
    c.add_option("--step-ms", doctor.step_ms,
                 "what a step takes without the profiler: predictions then leave its cost out")
        ->check(real_range(1e-6, 1e6))
        ->type_name("MS");
    CLI::App* compare = c.add_subcommand("compare", "put two traces side by side");
    compare->add_option("traces", doctor.compare, "before and after")
        ->required()
        ->expected(2)
        ->type_name("TRACE");
    compare
        ->add_option("--fail-if", doctor.fail_if,
                     "exit with 1 when a metric of the second is higher by more than this; may be "
                     "given again")
        ->type_name("METRIC>PERCENT%")
        ->allow_extra_args(false);
    compare->add_option("--warmup", doctor.warm_up, "steps to leave out at the start [found]")
        ->check(whole_range(0, 1 << 30));
    compare->add_option("--output,-o", doctor.output, "file to write; default: standard output")
        ->type_name("FILE");
    compare->footer(
        "Example:\n  saturate doctor compare before.json.gz after.json.gz --fail-if 'step>3%'");
    c.footer(R"(Examples:
  saturate doctor -- python train.py --epochs 1
  saturate doctor --duration 60 --format html -o report.html -- torchrun --nproc-per-node 2 train.py
  saturate doctor --fix-trial -- python train.py --steps 200
  saturate doctor trace.json.gz
  saturate doctor --ranks trace_rank0.json.gz trace_rank1.json.gz
  mpirun -n 2 saturate doctor --keep captures -- ./train; saturate doctor --ranks captures
  saturate doctor trace.json.gz --format json -o report.json
  saturate doctor compare before.json.gz after.json.gz --fail-if 'step>3%'
  saturate doctor report.sqlite --format html -o report.html
  saturate doctor --pid 4711 --duration 10
A trace comes from torch.profiler (activities CPU and CUDA, then export_chrome_trace) or from
nsys profile --trace=cuda,nvtx,osrt and nsys export --type sqlite.)");
  }

  // The configuration of a run that begins or, with `resumed`, goes on.
  RunConfig run_config(bool resumed) const {
    RunConfig config = train_flags.build();
    config.resume = config.resume || resumed;
    if (config.resume && !print_config) {
      // A run knows its configuration; what is given beside --resume goes before it.
      if (config.out.empty())
        throw Error(Errc::invalid_argument, "train", "nothing to resume; give --resume --out DIR");
      if (std::optional<RunConfig> saved = train::read_run_settings(config.out)) {
        config = train_flags.build(*std::move(saved));
        config.resume = true;
        train::check_text_is_there(config);
      } else if (config.data.train.empty()) {
        throw Error(Errc::invalid_argument, "train",
                    fmt::format("{0} holds no run to resume (no {0}/config.toml); give its folder",
                                config.out));
      }
    }
    config.quiet = config.quiet || quiet;
    return config;
  }

  int train() {
    if (help_config) {
      fmt::print("Keys of a configuration (TOML, or --set KEY=VALUE):\n{}", config_help());
      return 0;
    }
    RunConfig config = run_config(resume);
    if (print_config) {
      check_config(config);
      fmt::print("{}", to_toml(config, TomlComments::yes));
      return 0;
    }
    if (config.data.train.empty()) {
      throw Error(Errc::invalid_argument, "train",
                  "no training text; give --train SOURCE TARGET or data.train");
    }
    if (config.out.empty())
      throw Error(Errc::invalid_argument, "train", "no folder for the run; give --out DIR");
    check_config(config);
    if (config.quiet) set_log_level(LogLevel::warning);
    if (config.train.restart > 0 && restarted_child(config.train.restart))
      config = run_config(true);
    return run_train(config);
  }

  int run() {
    for (const ModelOptions* m : {&translate.model, &generate.model, &eval.model, &serve.model}) {
      if (m->quiet) set_log_level(LogLevel::warning);
      if (m->threads) set_cpu_threads(*m->threads);
    }
    if (*train_command) return train();
    if (*quantize_command) return run_quantize(quantize);
    if (*shortlist_command) return run_shortlist(shortlist);
    if (*panels_command) return run_panels(panels);
    if (*translate_command) return run_translate(translate);
    if (*generate_command) return run_generate(generate);
    if (*serve_command) return run_serve(serve);
    if (*merge_command) return run_merge(merge);
    if (*export_command) return run_export(exported);
    if (*eval_command) {
      if (eval.hypothesis.empty() && (eval.model.model.empty() || eval.test.empty())) {
        throw Error(
            Errc::invalid_argument, "eval",
            "nothing to score; give --model DIR --test SOURCE REFERENCE, or --hyp FILE --ref FILE");
      }
      return run_eval(eval);
    }
    if (*bench_command) {
      bench.config = bench_flags.build();
      return run_bench(bench);
    }
    if (*compare_command) {
      layouts.config = compare_flags.build(compare_defaults());
      return run_compare(layouts);
    }
    if (*plan_command) {
      plan.config = plan_flags.build();
      return run_plan(plan);
    }
    if (*tune_command) return run_tune(tune);
    if (*top_command) return run_top(top);
    if (*check_command) return run_check(check);
    if (*doctor_command) {
      check_doctor_options();
      return doctor_pid.pid > 0 ? doctor_of_pid() : run_doctor(doctor);
    }
    if (*lab_command) return run_lab(lab);
    if (*quickstart_command) return run_quickstart_data(quickstart);
    return run_info(all_kernels);
  }
};

// The arguments after "--" of `saturate doctor ... -- command`, which are not this program's to
// read.
std::vector<std::string> command_to_watch(int& argc, char** argv) {
  if (argc < 2 || std::string_view(argv[1]) != "doctor") return {};
  for (int i = 2; i < argc; ++i) {
    if (std::string_view(argv[i]) != "--") continue;
    std::vector<std::string> command(argv + i + 1, argv + argc);
    argc = i;
    return command;
  }
  return {};
}

int run_program(int argc, char** argv) {
  require_stack();
  require_open_files();
  Program program;
  const int given = argc;
  program.doctor.command = command_to_watch(argc, argv);
  program.doctor.watch = argc < given;
  try {
    program.app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return program.app.exit(e);  // --help, --version
    log_error(usage_message(program.app, e, argc, argv));
    return kExitUsage;
  }
  program.bench.arguments.assign(argv + std::min(argc, 2), argv + argc);
  return program.run();
}

}  // namespace
}  // namespace saturate::apps

int main(int argc, char** argv) {
  using namespace saturate;
  std::set_terminate(apps::tell_and_end);
  std::signal(SIGXFSZ, SIG_IGN);  // a file size limit is an error of write, not the end
  // Where one was closed, a file would take its place and what is printed would go there; writing
  // to this one fails.
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0) static_cast<void>(open("/dev/null", O_RDONLY));
  try {
    return apps::run_program(argc, argv);
  } catch (const Error& e) {
    log_error(e.what());
    return exit_code_of(e);
  } catch (const std::bad_alloc&) {
    log_error(apps::kOutOfMemory);
    return kExitMachine;
  } catch (const std::filesystem::filesystem_error& e) {
    // What no command expected of a file: of two the second is the one that was written.
    const std::string path = (e.path2().empty() ? e.path1() : e.path2()).string();
    log_error("[main] " + path + ": " + e.code().message() +
              (e.code() == std::errc::no_space_on_device ? "; free some, or give another folder"
               : e.code() == std::errc::permission_denied
                   ? "; give yourself the right to it, or another folder"
                   : ""));
    return kExitMachine;
  } catch (const std::system_error& e) {
    const bool limit = e.code() == std::errc::resource_unavailable_try_again;
    log_error(std::string("[main] ") + e.what() +
              (limit ? "; no more threads: raise the limits of processes (ulimit -u) and memory "
                       "(ulimit -v)"
                     : ""));
    return kExitMachine;
  } catch (const std::exception& e) {
    log_error(e.what());
    return kExitMachine;
  }
}
