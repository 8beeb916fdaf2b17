// SPDX-License-Identifier: Apache-2.0
// On a procfs of files.
#include "observe/launcher/file_uses.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"

namespace saturate::observe {
namespace {

namespace fs = std::filesystem;
constexpr int64_t kMs = 1'000'000, kMiB = 1 << 20;

class Uses : public ::testing::Test {
 protected:
  Uses() : open(folder / "", [this] { return now_ns; }), uses(folder / "", open) {
    fs::create_directories(process + "/fd");
    fs::create_directories(process + "/fdinfo");
    std::ofstream(process + "/stat") << "100 (python3) S 1\n";
    std::ofstream(process + "/mountinfo")
        << "27 1 254:0 / / rw - ext4 /dev/vda rw\n31 27 0:44 / /nfs rw - nfs4 server:/x rw\n";
  }
  void io(int64_t read, int64_t written, int64_t from_storage) {
    std::ofstream(process + "/io") << "rchar: " << read << "\nwchar: " << written
                                   << "\nsyscr: 1\nsyscw: 1\nread_bytes: " << from_storage
                                   << "\nwrite_bytes: 0\ncancelled_write_bytes: 0\n";
  }
  void file(int fd, const std::string& path, int64_t position, bool writes) {
    const std::string link = process + "/fd/" + std::to_string(fd);
    fs::remove(link);
    fs::create_symlink(path, link);
    std::ofstream(process + "/fdinfo/" + std::to_string(fd))
        << "pos:\t" << position << "\nflags:\t010000" << (writes ? 1 : 0) << "\n";
  }
  void look_at(int64_t ms) {
    now_ns = ms * kMs;
    uses.look(100, now_ns);
  }
  const HostUse* find(SpanKind kind, const std::string& name) {
    found = uses.uses();
    for (const HostUse& u : found)
      if (u.kind == kind && u.name == name) return &u;
    return nullptr;
  }

  saturate::testing::TempFolder folder;
  std::string process = folder / "100";
  int64_t now_ns = 0;
  OpenFiles open;
  FileUses uses;
  std::vector<HostUse> found;
};

TEST_F(Uses, BytesGoToTheFilesWhosePositionsMoved) {
  file(3, "/data/a.bin", 100, false);
  file(4, "/data/b.bin", 0, false);
  io(1'000, 0, 0);
  look_at(0);
  file(3, "/data/a.bin", 100 + 30 * kMiB, false);
  file(4, "/data/b.bin", 10 * kMiB, false);
  io(1'000 + 40 * kMiB, 0, 20 * kMiB);
  look_at(200);
  const HostUse* a = find(SpanKind::file_read, "/data/a.bin");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->bytes, 30 * kMiB);
  EXPECT_EQ(a->storage_bytes, 15 * kMiB);
  EXPECT_EQ(a->storage, "ext4 on /dev/vda");
  EXPECT_EQ(a->last_ns - a->first_ns, 200 * kMs);
  EXPECT_EQ(find(SpanKind::file_read, "/data/b.bin")->bytes, 10 * kMiB);
}

TEST_F(Uses, APositionThatJumpsIsNoRead) {
  file(3, "/data/a.bin", 0, false);
  io(0, 0, 0);
  look_at(0);
  file(3, "/data/a.bin", 5'000 * kMiB, false);
  io(kMiB, 0, 0);
  look_at(200);
  EXPECT_NEAR(static_cast<double>(find(SpanKind::file_read, "/data/a.bin")->bytes), kMiB, 8);
  file(3, "/data/a.bin", kMiB, false);  // from the start again
  io(2 * kMiB, 0, 0);
  look_at(400);
  EXPECT_NEAR(static_cast<double>(find(SpanKind::file_read, "/data/a.bin")->bytes), 2 * kMiB, 8);
}

TEST_F(Uses, WhatIsReadAtOffsetsGoesToTheFileThatAThreadWaitedFor) {
  file(3, "/data/a.bin", 0, false);
  io(0, 0, 0);
  look_at(0);
  uses.saw_wait(100, SpanKind::file_read, "/data/a.bin", 150 * kMs);
  io(8 * kMiB, 0, 8 * kMiB);
  look_at(200);
  const HostUse* a = find(SpanKind::file_read, "/data/a.bin");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->bytes, 8 * kMiB);
  EXPECT_EQ(a->storage_bytes, 8 * kMiB);
  io(16 * kMiB, 0, 16 * kMiB);  // nobody was seen to wait for a second: not known
  look_at(1'400);
  EXPECT_EQ(find(SpanKind::file_read, "/data/a.bin")->bytes, 8 * kMiB);
}

TEST_F(Uses, CheckpointsWithNumbersAreOneNameWithEpisodes) {
  io(0, 0, 0);
  look_at(0);
  for (int i = 1; i <= 3; ++i) {
    const std::string path = "/nfs/step-" + std::to_string(100 * i) + "/model.pt";
    file(5, path, 0, true);
    look_at(i * 2'000 - 200);
    file(5, path, 50 * kMiB, true);
    io(0, i * 50 * kMiB, 0);
    look_at(i * 2'000);
    uses.add_time(SpanKind::file_write, uses.name_of(path), 7, "python3", (i * 2'000 - 90) * kMs,
                  i * 2'000 * kMs);
  }
  const HostUse* w = find(SpanKind::file_write, "/nfs/step-#/model.pt");
  ASSERT_NE(w, nullptr);
  EXPECT_EQ(w->files, 3);
  EXPECT_EQ(w->example, "/nfs/step-100/model.pt");
  EXPECT_EQ(w->episodes, 3);
  EXPECT_EQ(w->bytes, 150 * kMiB);
  EXPECT_EQ(w->waited_ns, 270 * kMs);
  EXPECT_EQ(w->thread, "python3 (7)");
  EXPECT_TRUE(w->over_network);
  EXPECT_NEAR(static_cast<double>(w->last_start_ns - w->first_ns), 4'000e6, 250e6);
}

TEST_F(Uses, CopiesOfAThreadHaveTheirFile) {
  file(5, "/out/log.txt", 0, true);
  io(0, 0, 0);
  look_at(0);
  EXPECT_FALSE(uses.copied(100, 0, 1'000, 10 * kMs, 100 * kMs));
  io(0, 20 * kMiB, 0);  // a pipe: no file moved
  EXPECT_FALSE(uses.copied(100, 0, 20 * kMiB, 10 * kMs, 100 * kMs));
  file(5, "/out/log.txt", 20 * kMiB, true);
  io(0, 40 * kMiB, 0);
  const auto much = uses.copied(100, 0, 20 * kMiB, 10 * kMs, 1'000 * kMs);
  ASSERT_TRUE(much);
  EXPECT_EQ(much->kind, SpanKind::file_write);
  EXPECT_EQ(much->name, "/out/log.txt");
  EXPECT_TRUE(much->whole);
  const auto little = uses.copied(100, 0, 100'000, 10 * kMs, 1'010 * kMs);
  ASSERT_TRUE(little);
  EXPECT_FALSE(little->whole);
}

TEST_F(Uses, NamesStayFew) {
  for (char a = 'a'; a <= 'z'; ++a)
    for (char b = 'a'; b <= 'z'; ++b) uses.name_of(std::string("/cache/") + a + b);
  EXPECT_EQ(uses.name_of("/cache/unseen"), "/cache/*");
  EXPECT_EQ(path_pattern("/d/shard-0017-of-64.tar"), "/d/shard-#-of-#.tar");
}

TEST_F(Uses, WhatMayNotBeReadIsSaid) {
  look_at(0);
  EXPECT_NE(uses.refused().find("/proc/PID/io"), std::string::npos);
}

}  // namespace
}  // namespace saturate::observe
