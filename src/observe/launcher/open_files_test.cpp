// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/open_files.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/testing/temp_folder.h"

namespace saturate::observe {
namespace {

// Lines of a machine with a share, an overlay and a folder whose name has a blank.
constexpr const char* kMounts =
    "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    "25 24 0:23 / /dev/shm rw,relatime - tmpfs tmpfs rw,size=24684084k\n"
    "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard\n"
    "31 27 0:44 / /data rw,relatime - nfs4 server:/export/data rw,vers=4.2\n"
    "32 27 0:45 / /my\\040data rw,relatime - fuse.sshfs me@host:/x rw\n"
    "not a line\n";

TEST(Mounts, TheLongestThatHoldsThePath) {
  const std::vector<Mount> mounts = parse_mounts(kMounts);
  ASSERT_EQ(mounts.size(), 5u);
  EXPECT_EQ(mount_of(mounts, "/data/train.bin")->source, "server:/export/data");
  EXPECT_EQ(mount_of(mounts, "/data")->type, "nfs4");
  EXPECT_EQ(mount_of(mounts, "/database/x")->type, "ext4");
  EXPECT_EQ(mount_of(mounts, "/my data/x")->type, "fuse.sshfs");
  EXPECT_EQ(mount_of({}, "/x"), nullptr);
}

TEST(Mounts, WhereAFileSystemLies) {
  EXPECT_EQ(storage_of("nfs4"), Storage::network);
  EXPECT_EQ(storage_of("fuse.sshfs"), Storage::network);
  EXPECT_EQ(storage_of("lustre"), Storage::network);
  EXPECT_EQ(storage_of("tmpfs"), Storage::memory);
  EXPECT_EQ(storage_of("fuseblk"), Storage::disk);
  EXPECT_EQ(storage_of("overlay"), Storage::disk);
}

// As /proc/net/tcp and tcp6 have them.
TEST(Sockets, PeersByInode) {
  std::map<uint64_t, std::string> peers;
  parse_sockets(
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout "
      "inode\n"
      "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 "
      "7001 1 0000000000000000 100 0 0 10 0\n"
      "   1: 0100007F:8A02 0700000A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 "
      "7002 1 0000000000000000 20 4 30 10 -1\n"
      "   2: 0100007F:8A03 0700000A:01BB 06 00000000:00000000 00:00000000 00000000     0        0 "
      "0 3 0000000000000000\n",
      peers);
  parse_sockets(
      "   0: 0000000000000000FFFF00000100007F:8A04 0000000000000000FFFF00000200007F:0050 01 "
      "00000000:00000000 00:00000000 00000000     0        0 7003 1 0000000000000000 20 4 30 10 "
      "-1\n"
      "   1: B80D0120000000000000000001000000:8A05 B80D0120000000000000000002000000:0050 01 "
      "00000000:00000000 00:00000000 00000000     0        0 7004 1 0000000000000000 20 4 30 10 "
      "-1\n",
      peers);
  EXPECT_EQ(peers.size(), 4u);
  EXPECT_EQ(peers[7001], "clients on :8080");
  EXPECT_EQ(peers[7002], "10.0.0.7:443");
  EXPECT_EQ(peers[7003], "127.0.0.2:80");
  EXPECT_EQ(peers[7004], "[2001:db8::2]:80");
}

TEST(FdInfo, PositionAndDirection) {
  const auto write = parse_fdinfo("pos:\t1153\nflags:\t0100001\nmnt_id:\t27\nino:\t11042994\n");
  ASSERT_TRUE(write);
  EXPECT_EQ(write->position, 1153);
  EXPECT_TRUE(write->writes);
  EXPECT_FALSE(write->reads);
  const auto both = parse_fdinfo("pos:\t0\nflags:\t0100002\n");
  EXPECT_TRUE(both->writes && both->reads);
  EXPECT_FALSE(parse_fdinfo("flags:\t0\n"));
}

TEST(OpenFiles, DescriptorsLeadToFilesPipesAndPeers) {
  namespace fs = std::filesystem;
  saturate::testing::TempFolder folder;
  const std::string process = folder / "100";
  for (const char* sub : {"/fd", "/fdinfo", "/net"}) fs::create_directories(process + sub);
  fs::create_symlink("/data/train.bin", process + "/fd/3");
  fs::create_symlink("pipe:[42]", process + "/fd/4");
  fs::create_symlink("socket:[7002]", process + "/fd/5");
  fs::create_symlink("socket:[99]", process + "/fd/6");
  fs::create_symlink("/dev/nvidia0", process + "/fd/7");
  std::ofstream(process + "/fdinfo/3") << "pos:\t4096\nflags:\t0100000\n";
  std::ofstream(process + "/fdinfo/8") << "pos:\t0\nflags:\t02\ntfd:        5 events: 1 data: 5\n"
                                          "tfd:       11 events: 1 data: b\n";
  std::ofstream(process + "/net/tcp")
      << "   1: 0100007F:8A02 0700000A:01BB 01 0:0 0:0 0     0        0 7002 1\n";
  std::ofstream(process + "/mountinfo") << kMounts;
  int64_t now_ns = 0;
  OpenFiles open(folder / "", [&] { return now_ns; });
  EXPECT_EQ(open.target(100, 3).name, "/data/train.bin");
  EXPECT_EQ(open.target(100, 4).kind, TargetKind::pipe);
  EXPECT_EQ(open.target(100, 5).kind, TargetKind::peer);
  EXPECT_EQ(open.target(100, 5).name, "10.0.0.7:443");
  EXPECT_EQ(open.target(100, 6).kind, TargetKind::local_socket);
  EXPECT_EQ(open.target(100, 7).kind, TargetKind::device);
  EXPECT_EQ(open.target(100, 9).kind, TargetKind::gone);
  EXPECT_EQ(open.watched(100, 8), (std::vector<int64_t>{5, 11}));
  EXPECT_EQ(open.mount(100, "/data/train.bin")->type, "nfs4");
  bool readable = false;
  const auto files = open.files(100, readable);
  EXPECT_TRUE(readable);
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0].at.position, 4096);
  open.files(200, readable);
  EXPECT_FALSE(readable);
  OpenFiles with_capture(
      folder / "", [&] { return now_ns; }, "/data");
  EXPECT_TRUE(with_capture.files(100, readable).empty()) << "the doctor's own";
}

}  // namespace
}  // namespace saturate::observe
