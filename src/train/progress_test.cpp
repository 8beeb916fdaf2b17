// SPDX-License-Identifier: Apache-2.0
#include "train/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

namespace saturate::train {
namespace {

using std::chrono::milliseconds;

ProgressState full_state(int64_t step = 1200) {
  ProgressState s;
  s.step = step;
  s.total_steps = 3000;
  s.epoch = 4;
  s.loss = 3.4121;
  s.target_tokens_per_s = 728400;
  s.data_wait = 0.0031;
  s.flop_utilisation = 0.412;
  s.memory_bytes = 12.34 * 0x1p30;
  s.memory_total_bytes = 139.8 * 0x1p30;
  return s;
}

// A terminal of its own, with a clock that the test moves.
struct Screen {
  std::string text;
  int columns = 200;
  std::chrono::steady_clock::time_point now{std::chrono::hours(5)};

  Progress open(ProgressOptions options) {
    return Progress(
        options, [this](std::string_view s) { text += s; }, [this] { return columns; },
        [this] { return now; });
  }
  bool has_control_characters() const {
    return std::any_of(text.begin(), text.end(), [](char c) { return c != '\n' && c < 0x20; });
  }
};

TEST(Progress, FormatsEveryPart) {
  ProgressState s = full_state();
  s.seconds_left = 42;
  EXPECT_EQ(format_progress(s),
            "step 1200/3000  epoch 4  loss 3.412  728k tok/s  wait 0.3%  mfu 41.2%  "
            "mem 12.3/139.8 GiB  eta 0:42");
  EXPECT_EQ(format_progress({.step = 7, .epoch = 1}), "step 7  epoch 1");
  EXPECT_EQ(format_progress({.step = 7, .memory_bytes = 0x1p29}), "step 7  epoch 0  mem 512 MiB");
}

TEST(Progress, PlainHasNoControlCharactersAndKeepsItsInterval) {
  Screen screen;
  {
    Progress p = screen.open({.style = ProgressStyle::plain, .color = true});
    for (int i = 0; i <= 100; ++i) {
      p.update(full_state(i));
      screen.now += milliseconds(250);
    }
    p.message("valid  bleu 40.14\tbest\r\n");
  }
  EXPECT_FALSE(screen.has_control_characters());
  // Steps 0, 40 and 80 (every 10 s), the message, and step 100 at the end.
  EXPECT_EQ(std::count(screen.text.begin(), screen.text.end(), '\n'), 5);
  EXPECT_NE(screen.text.find("step 100/3000"), screen.text.npos);
  EXPECT_NE(screen.text.find("valid  bleu 40.14 best  \n"), screen.text.npos);
}

TEST(Progress, QuietWritesNothing) {
  Screen screen;
  {
    Progress p = screen.open({.style = ProgressStyle::quiet});
    p.update(full_state());
    p.message("hello");
    p.finish();
  }
  EXPECT_EQ(screen.text, "");
}

TEST(Progress, TerminalLineIsClippedToItsWidth) {
  Screen screen;
  screen.columns = 20;
  Progress p = screen.open({.style = ProgressStyle::terminal});
  p.update(full_state());
  EXPECT_EQ(screen.text, "\rstep 1200/3000  epo");
  screen.columns = 0;
  screen.now += milliseconds(200);
  p.update(full_state());
  EXPECT_EQ(screen.text, "\rstep 1200/3000  epo\rs");
}

TEST(Progress, TerminalRedrawsInPlaceAndOverwritesWhatWasLonger) {
  Screen screen;
  Progress p = screen.open({.style = ProgressStyle::terminal});
  p.update({.step = 100000});
  p.update({.step = 5});  // too soon
  EXPECT_EQ(screen.text, "\rstep 100000  epoch 0");
  screen.now += milliseconds(150);
  p.update({.step = 5});
  EXPECT_EQ(screen.text, "\rstep 100000  epoch 0\rstep 5  epoch 0     ");
  screen.text.clear();
  p.message("saved");
  EXPECT_EQ(screen.text, "\r               \rsaved\n\rstep 5  epoch 0");
  screen.text.clear();
  p.update({.step = 6});
  p.finish();
  EXPECT_EQ(screen.text, "\rstep 6  epoch 0\n");
  p.finish();
  EXPECT_EQ(screen.text, "\rstep 6  epoch 0\n");
}

TEST(Progress, TellsWhatIsDoneBeforeTheFirstStep) {
  Screen screen;
  {
    Progress p = screen.open({.style = ProgressStyle::plain});
    p.phase("text", "short");  // less than a second: not worth a line
    for (int i = 0; i < 130; ++i) {
      p.phase("tokenizer", std::to_string(i) + " lines");
      screen.now += milliseconds(100);
    }
  }
  EXPECT_EQ(screen.text, "tokenizer: 10 lines\ntokenizer: 110 lines\n");
  screen.text.clear();
  {
    Progress p = screen.open({.style = ProgressStyle::terminal});
    p.phase("a", "12");
    p.phase("a", "13");  // too soon
    p.phase("b", "1");
    p.message("said");
    p.update({.step = 1});
  }
  EXPECT_EQ(screen.text, "\ra: 12\rb: 1 \r    \rsaid\n\rb: 1\rstep 1  epoch 0\n");
  screen.text.clear();
  { screen.open({.style = ProgressStyle::terminal}).phase("a", "1"); }
  EXPECT_EQ(screen.text, "\ra: 1\r    \r");
}

TEST(Progress, ColorOnlyWhenAsked) {
  Screen screen;
  Progress p = screen.open({.style = ProgressStyle::terminal, .color = true});
  p.update({.step = 5});
  EXPECT_EQ(screen.text, "\r\033[1mstep\033[0m 5  epoch 0");
}

TEST(Progress, EstimatesTheTimeLeft) {
  Screen screen;
  Progress p = screen.open({.style = ProgressStyle::terminal});
  for (int step = 0; step <= 1000; ++step) {
    p.update(full_state(step));
    screen.now += milliseconds(200);  // five steps a second: 2,000 steps take 400 s
  }
  EXPECT_TRUE(screen.text.ends_with("eta 6:40")) << screen.text.substr(screen.text.size() - 40);
  screen.text.clear();
  for (int step = 1001; step <= 2000; ++step) {
    p.update(full_state(step));
    screen.now += milliseconds(400);  // slower since 400 s, more than 10 memories of 30 s ago
  }
  EXPECT_TRUE(screen.text.ends_with("eta 6:40")) << screen.text.substr(screen.text.size() - 40);
}

TEST(Progress, ReadsTheEnvironment) {
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(detect_color());
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(detect_color());
  unsetenv("NO_COLOR");
  EXPECT_TRUE(detect_color());
  EXPECT_EQ(detect_progress_style(-1, false), ProgressStyle::plain);
  EXPECT_EQ(detect_progress_style(0, true), ProgressStyle::quiet);
}

}  // namespace
}  // namespace saturate::train
