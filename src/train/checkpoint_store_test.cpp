// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_store.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "base/durable_file.h"
#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/safetensors.h"
#include "train/run_lock.h"

namespace saturate::train {
namespace {

using testing::read_file;
using testing::TempFolder;
using testing::write_file;

void save(CheckpointStore& store, int64_t step, const std::string& content) {
  store.save(step, content.size(), [&content](const std::string& folder) {
    write_durable_file(folder + "/state.json", content);
    std::filesystem::create_directory(folder + "/model");
    write_durable_file(folder + "/model/weights", content + content);
  });
}

std::vector<int64_t> steps(const CheckpointStore& store) {
  std::vector<int64_t> all;
  for (const Checkpoint& c : store.list()) all.push_back(c.step);
  return all;
}

TEST(CheckpointStore, SavesListsAndFindsTheNewest) {
  const TempFolder run;
  CheckpointStore store(run.path());
  std::vector<std::string> problems;
  EXPECT_FALSE(store.newest_valid(problems));
  EXPECT_TRUE(store.list().empty());
  save(store, 100, "one");
  save(store, 200, "two");
  EXPECT_EQ(steps(store), (std::vector<int64_t>{100, 200}));
  const auto newest = store.newest_valid(problems);
  ASSERT_TRUE(newest);
  EXPECT_EQ(newest->step, 200);
  EXPECT_EQ(newest->folder, run / "checkpoints/step-00000200");
  EXPECT_EQ(read_file(newest->folder + "/model/weights"), "twotwo");
  EXPECT_EQ(read_file(run / "checkpoints/latest"), "step-00000200\n");
  EXPECT_TRUE(problems.empty());
  save(store, 200, "again");  // the same step once more
  EXPECT_EQ(read_file(store.newest_valid(problems)->folder + "/state.json"), "again");
  EXPECT_EQ(steps(store).size(), 2u);
}

void keep(CheckpointStore& store, int64_t step) {
  store.keep_model(step, [](const std::string& folder) { write_file(folder + "/weights", "w"); });
}

TEST(CheckpointStore, KeepsTheLastAndTheBest) {
  const TempFolder run;
  CheckpointStore store(run.path());
  EXPECT_FALSE(store.best());
  EXPECT_FALSE(store.whole_model(2));
  for (int64_t step = 1; step <= 6; ++step) save(store, step, "x");
  for (int64_t step : {2, 3, 4}) keep(store, step);
  EXPECT_EQ(read_file(run / "checkpoints/best"), "best-00000004\n");
  EXPECT_EQ(store.best()->folder, run / "checkpoints/best-00000004");
  store.prune(2);
  EXPECT_EQ(steps(store), (std::vector<int64_t>{5, 6}));
  store.prune_models({-1, 2, 4});
  EXPECT_EQ(store.whole_model(2)->folder, run / "checkpoints/best-00000002");
  EXPECT_FALSE(store.whole_model(3));
  EXPECT_EQ(store.whole_model(5)->folder, run / "checkpoints/step-00000005");
  keep(store, 5);
  write_file(run / "checkpoints/best-00000005/weights", "x");  // damaged
  EXPECT_EQ(store.whole_model(5)->folder, run / "checkpoints/step-00000005");
  store.restore_best(2);
  EXPECT_EQ(store.best()->step, 2);
  store.restore_best(-1);
  EXPECT_FALSE(store.best());
  EXPECT_FALSE(std::filesystem::exists(run / "checkpoints/best"));
  write_file(run / "checkpoints/best", "step-00000006\n");  // as earlier versions named it
  EXPECT_EQ(store.best()->step, 6);
  store.prune(0);
  EXPECT_EQ(steps(store), (std::vector<int64_t>{6}));
}

TEST(CheckpointStore, ReportsDamageAndUsesTheOneBefore) {
  struct Case {
    const char* what;
    void (*damage)(const std::string& folder);
    const char* reason;
  };
  const Case cases[] = {
      {"cut short",
       [](const std::string& f) { std::filesystem::resize_file(f + "/model/weights", 3); },
       "model/weights has 3 bytes, 6 were saved"},
      {"bit flipped", [](const std::string& f) { write_file(f + "/state.json", "twO"); },
       "state.json is damaged"},
      {"missing", [](const std::string& f) { std::filesystem::remove(f + "/state.json"); },
       "state.json is missing"},
      {"no manifest", [](const std::string& f) { std::filesystem::remove(f + "/manifest.json"); },
       "manifest.json"},
      {"torn manifest",
       [](const std::string& f) { std::filesystem::resize_file(f + "/manifest.json", 20); },
       "no valid JSON"},
      {"empty manifest", [](const std::string& f) { write_file(f + "/manifest.json", "{}"); },
       "lists no files"},
      {"path outside",
       [](const std::string& f) {
         write_file(f + "/manifest.json", R"({"files":{"../../x":{"bytes":1,"xxh3":"0"}}})");
       },
       "outside the folder"},
      {"no sizes",
       [](const std::string& f) { write_file(f + "/manifest.json", R"({"files":{"a":1}})"); },
       "no bytes and xxh3 of a"}};
  for (const Case& c : cases) {
    const TempFolder run;
    CheckpointStore store(run.path());
    save(store, 1, "one");
    save(store, 2, "two");
    c.damage(store.list()[1].folder);
    std::vector<std::string> problems;
    const auto found = store.newest_valid(problems);
    ASSERT_TRUE(found) << c.what;
    EXPECT_EQ(found->step, 1) << c.what;
    ASSERT_EQ(problems.size(), 1u) << c.what;
    EXPECT_NE(problems[0].find(c.reason), std::string::npos) << problems[0];
    EXPECT_NE(problems[0].find("step-00000002"), std::string::npos) << problems[0];
  }
}

TEST(CheckpointStore, OnlyFoldersAreCheckpoints) {
  const TempFolder run;
  CheckpointStore store(run.path());
  save(store, 1, "one");
  const std::string root = run / "checkpoints/";
  std::filesystem::create_symlink("step-00000002", root + "step-00000002");  // to itself
  std::filesystem::create_symlink("nowhere", root + "step-00000003");
  write_file(root + "step-00000004", "a file");
  EXPECT_EQ(steps(store), (std::vector<int64_t>{1}));
  write_file(root + "best", "step-00000002\n");
  EXPECT_FALSE(store.best());
  store.remove_leftovers();
  store.prune(1);
  for (int64_t step = 2; step <= 4; ++step) save(store, step, "new");
  EXPECT_EQ(steps(store), (std::vector<int64_t>{1, 2, 3, 4}));
  std::filesystem::remove_all(root);
  std::filesystem::create_symlink("checkpoints", run / "checkpoints");
  EXPECT_TRUE(store.list().empty());
  EXPECT_THROW(store.remove_leftovers(), Error);
}

TEST(CheckpointStore, LaterCheckpointsThanTheResumedAreSetAside) {
  const TempFolder run;
  CheckpointStore store(run.path());
  for (int64_t step = 1; step <= 3; ++step) save(store, step, "x");
  store.set_aside_after(1);
  EXPECT_EQ(steps(store), (std::vector<int64_t>{1}));
  EXPECT_TRUE(std::filesystem::exists(run / "checkpoints/damaged-step-00000003/state.json"));
  save(store, 2, "again");
  store.set_aside_after(1);  // takes the place of the one set aside before
  EXPECT_EQ(read_file(run / "checkpoints/damaged-step-00000002/state.json"), "again");
}

TEST(CheckpointStore, AFullDiskLeavesTheOldOnes) {
  const TempFolder run;
  CheckpointStore store(run.path());
  save(store, 1, "one");
  try {
    store.save(2, 1 << 20, [](const std::string& folder) {
      // /dev/full refuses every write with ENOSPC.
      std::filesystem::create_symlink("/dev/full", folder + "/model.safetensors.tmp");
      model::SafetensorsWriter writer(folder + "/model.safetensors", {{"a", "F32", {1000}}});
      writer.write(std::span<const float>(std::vector<float>(1000)));
      writer.commit();
    });
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::io);
    const std::string what = e.what();
    EXPECT_NE(what.find("No space left"), std::string::npos) << what;
    EXPECT_NE(what.find("1048576 bytes are needed in all"), std::string::npos) << what;
  }
  EXPECT_THROW(store.save(3, uint64_t{1} << 62, [](const std::string&) { FAIL(); }), Error);
  std::vector<std::string> problems;
  EXPECT_EQ(store.newest_valid(problems)->step, 1);
  EXPECT_TRUE(problems.empty());
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints")) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

TEST(CheckpointStore, RemovesWhatAKilledWriterLeft) {
  const TempFolder run;
  CheckpointStore store(run.path());
  store.remove_leftovers();  // nothing there at all
  save(store, 1, "one");
  std::filesystem::create_directories(run / "checkpoints/.tmp-step-00000002/model");
  std::filesystem::create_directories(run / "checkpoints/.old-step-00000000");
  EXPECT_EQ(steps(store), (std::vector<int64_t>{1}));
  store.remove_leftovers();
  EXPECT_FALSE(std::filesystem::exists(run / "checkpoints/.tmp-step-00000002"));
  EXPECT_FALSE(std::filesystem::exists(run / "checkpoints/.old-step-00000000"));
  EXPECT_EQ(steps(store), (std::vector<int64_t>{1}));
}

TEST(RunLock, NamesTheProcessThatHoldsTheFolder) {
  const TempFolder run;
  {
    const RunLock lock(run / "new/run");
    try {
      const RunLock second(run / "new/run");
      FAIL() << "two holders";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Errc::invalid_argument);
      EXPECT_NE(std::string(e.what()).find("process " + std::to_string(::getpid())),
                std::string::npos)
          << e.what();
    }
  }
  const RunLock again(run / "new/run");
  EXPECT_TRUE(again.in_place());
  std::filesystem::rename(run / "new", run / "moved");
  EXPECT_FALSE(again.in_place());
  const RunLock other(run / "new/run");
  EXPECT_FALSE(again.in_place());
  EXPECT_TRUE(other.in_place());
}

}  // namespace
}  // namespace saturate::train
