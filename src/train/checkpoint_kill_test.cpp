// SPDX-License-Identifier: Apache-2.0
// kill -9 at every system call of a save: the newest whole checkpoint and model/ can always be
// loaded.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "base/durable_file.h"
#include "base/testing/temp_folder.h"
#include "model/folder_manifest.h"
#include "train/checkpoint_store.h"
#include "train/whole_folder.h"

namespace saturate::train {
namespace {

using testing::TempFolder;

void save(CheckpointStore& store, int64_t step, const std::string& content) {
  store.save(step, 0, [&content](const std::string& folder) {
    write_durable_file(folder + "/weights", content);
    write_durable_file(folder + "/state.json", content);
  });
}

enum class Outcome { killed, finished, untraceable };

// Runs `body` in a child and kills it on entry to its system call number `calls`.
Outcome run_and_kill(int calls, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(2);
    ::raise(SIGSTOP);
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return Outcome::untraceable;
  int stops = 0;
  while (true) {
    // Each call stops twice, on entry and on return; a kill at entry prevents it.
    if (stops == 2 * calls + 1) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return Outcome::killed;
    }
    if (::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr) != 0) return Outcome::untraceable;
    if (::waitpid(child, &status, 0) != child) return Outcome::untraceable;
    if (WIFEXITED(status))
      return WEXITSTATUS(status) == 0 ? Outcome::finished : Outcome::untraceable;
    ++stops;
  }
}

// `second_step` 200 adds a checkpoint and prunes the first; 100 replaces it.
void kill_everywhere(int64_t second_step) {
  const std::string before(5000, 'a'), after(5000, 'b');
  int survived_old = 0, survived_new = 0;
  for (int calls = 1; calls < 2000; ++calls) {
    const TempFolder run;
    CheckpointStore store(run.path());
    save(store, 100, before);
    const Outcome outcome = run_and_kill(calls, [&] {
      save(store, second_step, after);
      store.prune(1);
    });
    if (outcome == Outcome::untraceable)
      GTEST_SKIP() << "this machine does not let us trace a child";

    std::vector<std::string> problems;
    const auto found = store.newest_valid(problems);
    ASSERT_TRUE(found) << "no checkpoint after a kill at system call " << calls;
    EXPECT_TRUE(problems.empty()) << problems[0] << " after a kill at system call " << calls;
    const std::string content = testing::read_file(found->folder + "/weights");
    ASSERT_TRUE(content == before || content == after) << calls;
    content == after ? ++survived_new : ++survived_old;
    store.remove_leftovers();
    EXPECT_EQ(store.newest_valid(problems)->folder, found->folder);
    for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
      EXPECT_FALSE(entry.path().filename().string().starts_with(".tmp-")) << entry.path();
    }
    if (outcome == Outcome::finished) {
      EXPECT_EQ(content, after);
      EXPECT_GT(survived_old, 10);  // the kills did fall before and after the decisive rename
      EXPECT_GT(survived_new, 3);
      return;
    }
  }
  FAIL() << "the save never finished";
}

// model/ is made from a checkpoint while the one before is in its place.
TEST(CheckpointKill, ModelIsTheOldOrTheNewOne) {
  const std::string before(5000, 'a'), after(5000, 'b');
  int survived_old = 0, survived_new = 0;
  const auto fill = [](const std::string& content) {
    return [&content](const std::string& folder) {
      write_durable_file(folder + "/weights", content);
      write_durable_file(folder + "/config.json", content);
    };
  };
  for (int calls = 1; calls < 2000; ++calls) {
    const TempFolder run;
    const std::string from = run / "from", to = run / "model";
    write_whole_folder(from, 200, fill(after));
    write_whole_folder(to, 100, fill(before));
    const Outcome outcome = run_and_kill(calls, [&] {
      write_whole_folder(to, 200,
                         [&](const std::string& folder) { copy_direct_files(from, folder); });
    });
    if (outcome == Outcome::untraceable)
      GTEST_SKIP() << "this machine does not let us trace a child";
    const auto damage = model::manifest_damage(to);
    ASSERT_FALSE(damage) << *damage << " after a kill at system call " << calls;
    const bool is_new = testing::read_file(to + "/weights") == after;
    EXPECT_EQ(testing::read_file(to + "/config.json"), is_new ? after : before) << calls;
    EXPECT_EQ(model::manifest_step(to), is_new ? 200 : 100) << calls;
    is_new ? ++survived_new : ++survived_old;
    if (outcome == Outcome::finished) {
      EXPECT_TRUE(is_new);
      EXPECT_FALSE(std::filesystem::exists(unfinished_folder(to)));
      EXPECT_GT(survived_old, 10);  // the kills did fall before and after the decisive rename
      EXPECT_GT(survived_new, 3);
      return;
    }
  }
  FAIL() << "the model was never finished";
}

TEST(CheckpointKill, NewCheckpointIsWholeOrAbsent) { kill_everywhere(200); }
TEST(CheckpointKill, ReplacedCheckpointIsOldOrNew) { kill_everywhere(100); }

}  // namespace
}  // namespace saturate::train
