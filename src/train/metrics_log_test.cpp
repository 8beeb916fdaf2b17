// SPDX-License-Identifier: Apache-2.0
#include "train/metrics_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"

namespace saturate::train {
namespace {

class MetricsLogTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string content() const {
    std::ifstream in(file_, std::ios::binary);
    return (std::stringstream() << in.rdbuf()).str();
  }
  void append(const std::string& text) const {
    std::ofstream(file_, std::ios::binary | std::ios::app) << text;
  }
  std::string error_of_reading() const {
    try {
      read_metrics(file_);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }

  std::filesystem::path folder_ =
      std::filesystem::temp_directory_path() / ("saturate_metrics_" + std::to_string(getpid()));
  std::filesystem::path file_ = folder_ / "metrics.jsonl";
};

TrainRow train_row(int64_t step) {
  TrainRow row;
  row.step = step;
  row.epoch = 1;
  row.loss = 1.0 / static_cast<double>(step + 1);
  return row;
}

TEST_F(MetricsLogTest, RowsComeBackAsWritten) {
  MetricsLog log(file_);
  log.write(
      RunHeader{0, "2026-01-02T03:04:05Z", {{"b", "2"}, {"a", "x \"y\" \\"}}, {{"gpu", "none"}}});
  TrainRow train = train_row(10);
  train.learning_rate = 0.1 + 0.2;
  train.memory_bytes = 0x1p37 + 1;
  train.grad_norm = std::numeric_limits<double>::infinity();
  log.write(train);
  log.write(ValidRow{10, 1, 2.5, 3.25, 40.14, 63.92});
  log.write(SampleRow{10, 2, "a\nb\tc", "\xff bad", "\xe6\x97\xa5"});
  log.write(RoutingRow{.step = 10, .layer = "decoder 3", .shares = {0.25, 0.75}, .dropped = 0.125});
  log.write(RunEnd{10, 9.5, "finished", {{"bleu", "40.14"}}});

  const auto rows = read_metrics(file_);  // while the log is open: every line was flushed
  ASSERT_EQ(rows.size(), 6u);
  const auto& header = std::get<RunHeader>(rows[0]);
  EXPECT_EQ(header.config, (TextPairs{{"b", "2"}, {"a", "x \"y\" \\"}}));  // in this order
  EXPECT_EQ(header.environment, (TextPairs{{"gpu", "none"}}));
  const auto& t = std::get<TrainRow>(rows[1]);
  EXPECT_EQ(t.step, 10);
  EXPECT_EQ(t.loss, train.loss);
  EXPECT_EQ(t.learning_rate, train.learning_rate);
  EXPECT_EQ(t.memory_bytes, train.memory_bytes);
  EXPECT_TRUE(std::isnan(t.grad_norm));  // JSON knows no infinity
  EXPECT_TRUE(std::isnan(t.data_wait));
  EXPECT_EQ(std::get<ValidRow>(rows[2]).chrf, 63.92);
  const auto& sample = std::get<SampleRow>(rows[3]);
  EXPECT_EQ(sample.source, "a\nb\tc");
  EXPECT_EQ(sample.hypothesis, "\xef\xbf\xbd bad");
  const auto& routing = std::get<RoutingRow>(rows[4]);
  EXPECT_EQ(routing.layer, "decoder 3");
  EXPECT_EQ(routing.shares, (std::vector<double>{0.25, 0.75}));
  EXPECT_EQ(routing.dropped, 0.125);
  EXPECT_EQ(std::get<RunEnd>(rows[5]).status, "finished");
}

TEST_F(MetricsLogTest, WritesOneStableLine) {
  ValidRow row{3, 1, 2.5, 3.25, 40.14, kNotMeasured, "dev"};
  EXPECT_EQ(
      to_json(row),
      R"({"kind":"valid","step":3,"set":"dev","epoch":1,"elapsed_s":2.5,"loss":3.25,"bleu":40.14,"chrf":null})");
}

TEST_F(MetricsLogTest, ResumeDropsLaterStepsAndTornLines) {
  {
    MetricsLog log(file_);
    log.write(RunHeader{});
    for (int64_t step = 1; step <= 10; ++step) log.write(train_row(step));
  }
  const std::string whole = content();
  append(R"({"kind":"train","step":1)");  // killed while writing
  EXPECT_EQ(read_metrics(file_).size(), 11u);
  {
    MetricsLog log(file_, 6);
    for (int64_t step = 7; step <= 10; ++step) log.write(train_row(step));
  }
  EXPECT_EQ(content(), whole);
  MetricsLog log(file_, 100);
  EXPECT_EQ(content(), whole);
}

TEST_F(MetricsLogTest, ResumeAfterTornLineAtTheResumedStep) {
  { MetricsLog(file_).write(train_row(1)); }
  const std::string whole = content();
  append(R"({"kind")");
  { MetricsLog log(file_, 1); }
  EXPECT_EQ(content(), whole);
}

TEST_F(MetricsLogTest, ResumeWithoutAFileStartsOne) {
  MetricsLog(file_, 50).write(train_row(51));
  EXPECT_EQ(read_metrics(file_).size(), 1u);
}

TEST_F(MetricsLogTest, NewRunEmptiesTheFile) {
  append("old\n");
  MetricsLog log(file_);
  EXPECT_EQ(content(), "");
}

TEST_F(MetricsLogTest, BadLinesAreNamed) {
  append(to_json(train_row(1)) + "\nnot json\n");
  EXPECT_NE(error_of_reading().find("metrics.jsonl:2: not a row"), std::string::npos);
  EXPECT_THROW(MetricsLog(file_, 5), Error);
  for (const char* line : {"[]", "{}", "3", R"({"kind":"train"})", R"({"kind":"train","step":"x"})",
                           R"({"kind":"train","step":1,"loss":"x"})", R"({"kind":7,"step":1})",
                           R"({"kind":"run","step":1,"config":{"a":1}})", ""}) {
    std::filesystem::remove(file_);
    append(std::string(line) + "\n");
    EXPECT_NE(error_of_reading().find("metrics.jsonl:1:"), std::string::npos) << line;
  }
}

TEST_F(MetricsLogTest, UnknownKindsAndKeysArePassedOver) {
  append("{\"kind\":\"later\",\"x\":[1]}\n{\"kind\":\"train\",\"step\":4,\"new\":{}}\n");
  EXPECT_EQ(read_metrics(file_).size(), 1u);
}

TEST_F(MetricsLogTest, MissingFolderIsAnError) {
  EXPECT_THROW(MetricsLog(folder_ / "none" / "metrics.jsonl"), Error);
  EXPECT_THROW(read_metrics(folder_ / "none.jsonl"), Error);
}

TEST_F(MetricsLogTest, FullDiskIsAnError) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  MetricsLog log("/dev/full");
  EXPECT_THROW(log.write(train_row(1)), Error);
}

}  // namespace
}  // namespace saturate::train
