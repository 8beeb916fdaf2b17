// SPDX-License-Identifier: Apache-2.0
#include "train/tuned_tables.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/testing/temp_folder.h"
#include "kernels/attention/tune/table.h"
#include "parallel/launch.h"

namespace saturate::train {
namespace {

using kernels::AttentionKey;
using kernels::AttentionTable;
using saturate::testing::TempFolder;

// Tables are data: no GPU is asked.
const Device kGpu{DeviceKind::cuda, 0};
const kernels::TuneMachine kHere{"NVIDIA H200", "9.0", "580.159.04", "cuBLASLt 13.0.2"};
const AttentionKey kShape{.dtype = DType::bf16,
                          .head_size = 64,
                          .v_head_size = 64,
                          .heads = 8,
                          .kv_heads = 8,
                          .sequences = 784,
                          .queries = 32,
                          .keys = 32,
                          .longest = 32};

AttentionTable naming(const char* impl) {
  AttentionTable table;
  table.set(kShape, {impl, 1, 2});
  return table;
}

struct TunedRun {
  TempFolder folder;
  std::string cache = folder / "attention.json";
  RunConfig config;
  kernels::KernelOptions options;
  std::unique_ptr<parallel::Communicator> ranks = parallel::make_communicator(Device{}, {});

  TunedRun() {
    config.out = folder / "run";
    std::filesystem::create_directory(config.out);
    config.train.gemm_table = "none";
    config.train.attention_table = cache;
  }
  void start(bool resume) {
    config.resume = resume;
    options = kernel_options_of_run(config, kHere, *ranks);
  }
  // What attention would run for the shape; "" for the first of its list.
  std::string in_use() const {
    const auto* const choice =
        options.attention_table != nullptr ? options.attention_table->find(kShape) : nullptr;
    return choice != nullptr ? choice->impl : "";
  }
};

TEST(TunedTables, ARunKeepsTheTableThatItWasStartedWith) {
  TunedRun run;
  kernels::merge_attention_table(run.cache, kHere, naming("first"));
  run.start(false);
  EXPECT_EQ(run.in_use(), "first");
  kernels::merge_attention_table(run.cache, kHere, naming("second"));
  run.start(true);
  EXPECT_EQ(run.in_use(), "first") << "tuned since, but a run resumes bit for bit";
  run.config.train.attention_table = "none";
  run.start(true);
  EXPECT_EQ(run.in_use(), "first");
  run.start(false);
  EXPECT_EQ(run.in_use(), "");
  run.config.train.attention_table = run.cache;
  run.start(false);
  EXPECT_EQ(run.in_use(), "second");
}

TEST(TunedTables, ARunFromBeforeThereWereTablesGoesOnWithout) {
  TunedRun run;
  kernels::merge_attention_table(run.cache, kHere, naming("first"));
  run.start(true);
  EXPECT_EQ(run.in_use(), "");
}

TEST(TunedTables, ANamedTableThatCannotBeUsedIsAnErrorThatSaysWhy) {
  TunedRun run;
  const auto message = [&]() -> std::string {
    try {
      run.start(false);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message().find("[train.attention_table] " + run.cache + " is not there"),
            std::string::npos)
      << message();
  kernels::TuneMachine other = kHere;
  other.driver = "590.2";
  kernels::merge_attention_table(run.cache, other, naming("first"));
  EXPECT_NE(message().find("it was measured with driver 590.2, now 580.159.04"), std::string::npos)
      << message();
}

TEST(KernelOptions, OnlyBf16OnTheCpuRoundsProducts) {
  RunConfig config;
  EXPECT_FALSE(kernel_options(config, Device{}).allow_bf16);
  config.train.precision = "bf16";
  EXPECT_TRUE(kernel_options(config, Device{}).allow_bf16);
  config.train.precision = "fp32";
  EXPECT_FALSE(kernel_options(config, Device{}).allow_bf16);
}

}  // namespace
}  // namespace saturate::train
