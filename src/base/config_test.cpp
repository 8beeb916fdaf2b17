// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "base/config_keys.h"
#include "base/error.h"

namespace saturate {
namespace {

template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    return e.what();
  }
  return "no error";
}

std::string toml_message(const std::string& text) {
  return message_of([&] {
    RunConfig config;
    merge_toml(config, text, "run.toml");
  });
}

std::string set_message(const std::string& assignment) {
  return message_of([&] {
    RunConfig config;
    set_key(config, assignment);
  });
}

TEST(Config, EveryKeyIsNamedOnceAndItsDefaultIsAllowed) {
  std::set<std::string> names;
  RunConfig defaults;
  for (const config::Key& key : config::keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    EXPECT_STRNE(key.help, "");
    const std::string value = value_text(key, defaults);
    if (value.empty()) continue;  // decided by the preset
    const std::string name = key.name;
    const size_t dot = name.find('.');
    const std::string text = dot == std::string::npos ? name + " = " + value
                                                      : "[" + name.substr(0, dot) + "]\n" +
                                                            name.substr(dot + 1) + " = " + value;
    RunConfig config;
    EXPECT_NO_THROW(merge_toml(config, text, key.name)) << text;
    EXPECT_EQ(config, defaults) << key.name;
  }
}

TEST(Config, ReadsTomlOfEveryType) {
  RunConfig c;
  merge_toml(c, R"(
out = "runs/x"
resume = true
[model]
preset = "tiny"
d_model = 128
dropout = 0.3
gated = true
norm = "rms_norm"
[data]
train = ["a.en", "a.de"]
valid = "v.tsv"
[optimizer]
lr = 1
[train]
memory = "4GiB"
)",
             "run.toml");
  EXPECT_EQ(c.out, "runs/x");
  EXPECT_TRUE(c.resume);
  EXPECT_EQ(c.model.preset, "tiny");
  EXPECT_EQ(c.model.d_model, 128);
  EXPECT_EQ(c.model.dropout, 0.3);
  EXPECT_EQ(c.model.gated, true);
  EXPECT_EQ(c.model.norm, "rms_norm");
  EXPECT_FALSE(c.model.heads.has_value());
  EXPECT_EQ(c.data.train, (std::vector<std::string>{"a.en", "a.de"}));
  EXPECT_EQ(c.data.valid, std::vector<std::string>{"v.tsv"});
  EXPECT_EQ(c.optimizer.lr, 1.0);
  EXPECT_EQ(c.train.memory.value, int64_t{4} << 30);
}

TEST(Config, SetTakesTheSameTypes) {
  RunConfig c;
  for (const char* s :
       {"optimizer.lr=3e-4", "train.graph = off", "data.train=a.en, a.de", "model.heads=4",
        "train.device=cuda:1", "train.memory=2GiB", "model.dropout=0", "data.languages="}) {
    set_key(c, s);
  }
  EXPECT_EQ(c.optimizer.lr, 3e-4);
  EXPECT_FALSE(c.train.graph);
  EXPECT_EQ(c.data.train, (std::vector<std::string>{"a.en", "a.de"}));
  EXPECT_EQ(c.model.heads, 4);
  EXPECT_EQ(c.train.device, "cuda:1");
  EXPECT_EQ(c.train.memory.value, int64_t{2} << 30);
  EXPECT_EQ(c.model.dropout, 0.0);
  EXPECT_TRUE(c.data.languages.empty());
}

TEST(Config, SetTakesListsAndTextsAsTomlWritesThem) {
  using Texts = std::vector<std::string>;
  const auto list = [](const std::string& value) {
    RunConfig c;
    set_key(c, "data.languages=" + value);
    return c.data.languages;
  };
  const Texts pair{"en", "cs"};
  for (const char* value : {R"(["en","cs"])", R"([ "en", 'cs' ])", R"("en", "cs")", "[en,cs]",
                            "en,cs", R"(["en", "cs",])"}) {
    EXPECT_EQ(list(value), pair) << value;
  }
  EXPECT_EQ(list(R"(["a,b", "say \"x\"", 'c:\d'])"), (Texts{"a,b", "say \"x\"", "c:\\d"}));
  EXPECT_EQ(list("l'un,d'autre"), (Texts{"l'un", "d'autre"}));
  EXPECT_EQ(list("[]"), Texts{});
  RunConfig c;
  set_key(c, R"(model.preset="tiny")");
  set_key(c, "out='runs/a b'");
  set_key(c, "model.norm = \"rms_norm\"");
  EXPECT_EQ(c.model.preset, "tiny");
  EXPECT_EQ(c.out, "runs/a b");
  EXPECT_EQ(c.model.norm, "rms_norm");
  for (const char* wrong : {R"(data.languages=["en","cs])", R"(data.languages="en)", R"(out="a" b)",
                            "out=\"a\"\nb.c=\"", R"(out="\z")"}) {
    EXPECT_NE(set_message(wrong).find("a quoted text must end with its quote"), std::string::npos)
        << wrong << ": " << set_message(wrong);
  }
  // What a configuration is printed as can be given with --set.
  RunConfig again;
  c.data.train = {"a, b", "\"c\"", "d"};
  for (const char* name : {"out", "data.train"})
    set_key(again, std::string(name) + "=" + value_text(*config::find_key(name), c));
  EXPECT_EQ(again.data.train, c.data.train);
  EXPECT_EQ(again.out, c.out);
}

TEST(Config, ErrorsNamePlaceRuleAndNearestKey) {
  EXPECT_EQ(
      toml_message("[optimizer]\nlr = 3e-4\nbeat1 = 0.9\n"),
      "[config] run.toml:3:1: unknown key 'optimizer.beat1'; did you mean 'optimizer.beta1'?");
  EXPECT_EQ(toml_message("[optimizer]\n  lr = 50.0\n"),
            "[config] run.toml:2:8: optimizer.lr must be a number from 0 to 10, got 50.0");
  EXPECT_EQ(toml_message("[optimizer]\nlr = nan\n").substr(0, 38),
            "[config] run.toml:2:6: optimizer.lr mu");
  EXPECT_EQ(
      toml_message("[batch]\naccumulate = 1.5\n"),
      "[config] run.toml:2:14: batch.accumulate must be a whole number from 1 to 65536, got 1.5");
  EXPECT_EQ(toml_message("[model]\nnorm = \"rms\"\n"),
            "[config] run.toml:2:8: model.norm must be one of layer_norm, rms_norm, got \"rms\"");
  EXPECT_EQ(
      toml_message("[schedule]\nkind = \"cosin\"\n"),
      "[config] run.toml:2:8: schedule.kind must be one of constant, inverse_sqrt, linear, cosine, "
      "warmup_stable_decay, got \"cosin\"; did you mean 'cosine'?");
  EXPECT_EQ(toml_message("[optimiser]\nlr = 1.0\n"),
            "[config] run.toml:1:2: unknown section 'optimiser'; did you mean 'optimizer'?");
  EXPECT_EQ(toml_message("[data]\ntrain = [1, 2]\n"),
            "[config] run.toml:2:9: data.train must be a list of texts");
  EXPECT_EQ(toml_message("[train]\nseed = 1979-05-27\n").substr(0, 40),
            "[config] run.toml:2:8: train.seed must b");
  EXPECT_EQ(toml_message("a = = 1").substr(0, 22), "[config] run.toml:1:5:");
  EXPECT_EQ(set_message("optimizer.ler=1"),
            "[config] unknown key 'optimizer.ler'; did you mean 'optimizer.lr'? (saturate train "
            "--help-config "
            "lists all keys)");
  EXPECT_EQ(set_message("optimizer.lr"),
            "[config] --set optimizer.lr has no '='; write section.key=value");
  EXPECT_EQ(set_message("train.max_steps=1e3"),
            "[config] train.max_steps must be a whole number, 0 or more (up to 1e15), got 1000.0");
  EXPECT_EQ(set_message("train.graph=maybe"),
            "[config] train.graph must be true or false, got \"maybe\"");
  EXPECT_EQ(set_message("train.memory=4GiX"),
            "[config] train.memory must be an amount of memory such as \"4GiB\", got \"4GiX\"");
  EXPECT_EQ(set_message("lora=rank=0,alpha=8"),
            "[config] lora: rank must be 1 or more; write it like rank=16, or leave lora out to "
            "train all of the model");
  EXPECT_EQ(set_message("out=\xFF"), "[config] --set: byte 5 is not UTF-8");
}

TEST(Config, OneTextSetsHowRanksShareTheWork) {
  const auto expect = [](const RunConfig& c) {
    EXPECT_EQ(c.parallel.tp, 2);
    EXPECT_EQ(c.parallel.zero, "3");
    EXPECT_EQ(c.parallel.recompute, "full");
    EXPECT_EQ(c.batch.accumulate, 8);
  };
  RunConfig c;
  set_parallel(c, "tp=2, zero=3,recompute=full,micro_batches=8");
  expect(c);
  RunConfig as_key;
  set_key(as_key, "parallel=tp=2,zero=3,recompute=full,micro_batches=8");
  expect(as_key);
  RunConfig as_text;
  merge_toml(as_text, "parallel = \"tp=2,zero=3,recompute=full,micro_batches=8\"", "run.toml");
  expect(as_text);
  RunConfig as_table;
  merge_toml(as_table, "parallel = {tp = 2, zero = 3, recompute = \"full\"}\nbatch.accumulate = 8",
             "run.toml");
  expect(as_table);
  // Axes are said anew as a whole, what else there is stays.
  set_parallel(as_table, "pp=4");
  EXPECT_EQ(as_table.parallel.tp, 1);
  EXPECT_EQ(as_table.parallel.pp, 4);
  EXPECT_EQ(as_table.parallel.zero, "3");
  set_parallel(as_table, "zero=1");
  EXPECT_EQ(as_table.parallel.pp, 4);
  set_parallel(as_table, "auto");
  EXPECT_EQ(as_table.parallel, ParallelConfig{.schedule = "auto"});
  set_parallel(as_table, "zero=1");
  EXPECT_EQ(as_table.parallel, ParallelConfig{.zero = "1"});
  EXPECT_EQ(set_message("parallel=tp"),
            "[config] parallel: tp has no '='; write it like tp=2,zero=3, or auto");
  EXPECT_EQ(set_message("parallel=zer=1"),
            "[config] unknown key 'parallel.zer'; did you mean 'parallel.zero'? (saturate train "
            "--help-config lists all keys)");
  EXPECT_EQ(toml_message("parallel = \"zero=4\""),
            "[config] run.toml:1:12: parallel.zero must be one of auto, 0, 1, 2, 3, got \"4\"; did "
            "you mean "
            "'0'?");
  EXPECT_EQ(toml_message("[parallel]\nzero = 4"),
            "[config] run.toml:2:8: parallel.zero must be one of auto, 0, 1, 2, 3, got 4");
}

TEST(Config, AFailedMergeChangesNothing) {
  RunConfig config;
  EXPECT_THROW(merge_toml(config, "out = \"x\"\n[train]\nseed = -1\n", "run.toml"), Error);
  EXPECT_EQ(config, RunConfig{});
}

TEST(Config, TomlRoundTrip) {
  RunConfig config;
  for (const char* s :
       {"optimizer.lr=0.1", "optimizer.eps=1e-20", "train.seed=1000000000000000", "model.ffn=2048",
        "model.norm_eps=1e-6", "train.memory=3GiB", "model.bias=false", "train.max_seconds=60"}) {
    set_key(config, s);
  }
  config.data.train = {"with \"quotes\" and \\", "tab\t and \x01\x7F", "a\xC3\xA7"};
  for (const TomlComments comments : {TomlComments::no, TomlComments::yes}) {
    RunConfig again;
    merge_toml(again, to_toml(config, comments), "dump");
    EXPECT_EQ(again, config);
  }
}

TEST(Config, ChecksRulesBetweenKeys) {
  const auto problem = [](std::initializer_list<const char*> settings) {
    return message_of([&] {
      RunConfig config;
      for (const char* s : settings) set_key(config, s);
      check_config(config);
    });
  };
  EXPECT_EQ(problem({}), "no error");
  EXPECT_EQ(
      problem({"schedule.kind=cosine", "train.max_steps=0"}),
      "[config] schedule.kind = cosine needs an end; set train.max_steps or schedule.total_steps");
  EXPECT_EQ(problem({"schedule.kind=linear", "train.max_steps=100"}),
            "[config] schedule.warmup_steps = 4000 must be below the last step, 100");
  EXPECT_EQ(problem({"data.languages=en"}), "no error");  // the key of a language model's JSONL
  EXPECT_EQ(problem({"data.languages=en,de,fr"}),
            "[config] data.languages names 3 languages; give the source and the target");
}

TEST(Config, BothEndsOfARangeAreAllowedAndNothingBeyond) {
  for (const config::Key& key : config::keys()) {
    if (key.high == 0) continue;
    RunConfig config;
    const auto takes = [&](double value) {
      const bool whole = std::holds_alternative<int64_t*>(key.slot(config)) ||
                         std::holds_alternative<std::optional<int64_t>*>(key.slot(config)) ||
                         std::holds_alternative<Bytes*>(key.slot(config));
      return assign(key, config,
                    whole ? config::Value(static_cast<int64_t>(value)) : config::Value(value)) ==
             "";
    };
    EXPECT_TRUE(takes(key.low)) << key.name;
    EXPECT_TRUE(takes(key.high)) << key.name;
    EXPECT_FALSE(takes(key.low - 1)) << key.name;
    EXPECT_FALSE(takes(key.high + 1)) << key.name;
  }
}

TEST(Config, KeysOfManyDotsAreRefusedBeforeTablesAreMade) {
  std::string many;
  for (int i = 0; i < 50000; ++i) many += ".a";
  for (const std::string& text : {"a" + many + " = 1\n", "[a" + many + "]\n", "[[a" + many + "]]\n",
                                  "x = {a" + many + " = 1}\n", "\"a\"" + many + " = 1\n",
                                  "out = \"b\"\na" + many + " = 1 # c\n"}) {
    EXPECT_NE(toml_message(text).find("too many dots"), std::string::npos) << text.substr(0, 20);
  }
  EXPECT_NE(toml_message("# .\nout = '''\n..'''\n  a" + many).find("run.toml:4:"),
            std::string::npos);
  const std::string dots(90, '.');
  RunConfig config;
  merge_toml(config,
             "out = \"\\\"" + dots + "\" # " + dots + "\n[data]\ntrain = ['" + dots + "', \"\"\"" +
                 dots + "\"\"\", '''\n" + dots + "''']\n[optimizer]\nlr = 1.5e-3\n",
             "run.toml");
  EXPECT_EQ(config.out, "\"" + dots);
  EXPECT_EQ(config.data.train, (std::vector<std::string>{dots, dots, dots}));
}

TEST(Config, FilesAreBoundedAndNamed) {
  const auto folder = std::filesystem::temp_directory_path();
  RunConfig config;
  EXPECT_THROW(merge_toml_file(config, (folder / "saturate_no_such_file.toml").string()), Error);
  const std::string big = (folder / "saturate_config_test_big.toml").string();
  std::ofstream(big) << std::string((1 << 20) + 1, '#');
  EXPECT_EQ(message_of([&] { merge_toml_file(config, big); }),
            "[config] " + big + ": larger than 1 MiB; this is no configuration file");
  std::filesystem::remove(big);
}

TEST(Config, HelpNamesEveryKey) {
  const std::string help = config_help();
  for (const config::Key& key : config::keys()) EXPECT_NE(help.find(key.name), std::string::npos);
  EXPECT_EQ(config_help("optimizer.").find("model."), std::string::npos);
}

}  // namespace
}  // namespace saturate
