// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sqlite3.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "observe/read/nsys.h"
#include "observe/read/open_capture.h"

namespace saturate::observe {
namespace {

constexpr const char* kSchema = R"SQL(
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO StringIds VALUES (1,'gemm<bf16>'),(2,'gemm'),(3,'cudaLaunchKernel'),(4,'poll'),(5,'step 7');
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, smCount INTEGER);
INSERT INTO TARGET_INFO_GPU VALUES (0,'NVIDIA H200',132);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER,
  gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (2000,3000,0,1,7,11,281474976710656 + 99 * 16777216,1,2,4,2,1,128,1,1);
INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (0,0,0,1,7,12,0,1,2,4,2,1,128,1,1);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER,
  streamId INTEGER, correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER, srcKind INTEGER, dstKind INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (1000,1500,0,1,7,10,99 * 16777216,4096,1,0,2),(4000,4100,0,1,7,13,99 * 16777216,4,2,2,1);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1600,1900,281474976710656 + 99 * 16777216 + 101,11,3);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, globalTid INTEGER);
INSERT INTO NVTX_EVENTS VALUES (900,5000,59,NULL,5,99 * 16777216 + 101),(950,960,59,'aten::mm, op_id = 3',NULL,99 * 16777216 + 101),
  (960,990,59,'enumerate(DataLoader)#x',NULL,99 * 16777216 + 101),(970,NULL,34,'mark',NULL,0);
CREATE TABLE OSRT_API (start INTEGER, end INTEGER, globalTid INTEGER, nameId INTEGER);
INSERT INTO OSRT_API VALUES (3100,3900,99 * 16777216 + 101,4);
)SQL";

class NsysFile {
 public:
  explicit NsysFile(const std::string& sql) : path(folder / "t.sqlite") {
    sqlite3* db = nullptr;
    EXPECT_EQ(sqlite3_open(path.c_str(), &db), SQLITE_OK);
    char* problem = nullptr;
    EXPECT_EQ(sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &problem), SQLITE_OK) << problem;
    sqlite3_close(db);
  }
  saturate::testing::TempFolder folder;
  std::string path;
};

TEST(Nsys, ReadsAllTables) {
  const NsysFile file(kSchema);
  const Trace t = read_nsys(file.path);
  ASSERT_EQ(t.ops.size(), 3u);
  EXPECT_EQ(t.malformed, 1);  // the kernel without times
  EXPECT_EQ(t.ops[0].copy, CopyKind::host_to_device);
  EXPECT_EQ(t.ops[0].memory, HostMemory::pageable);
  EXPECT_EQ(t.ops[1].kind, OpKind::kernel);
  EXPECT_EQ(t.names[t.ops[1].name], "gemm<bf16>");
  EXPECT_EQ(t.ops[1].size, 8);
  EXPECT_EQ(t.ops[2].copy, CopyKind::device_to_host);
  EXPECT_EQ(t.ops[2].memory, HostMemory::pinned);
  ASSERT_EQ(t.calls.size(), 1u);
  EXPECT_EQ(t.threads[t.calls[0].thread], (ThreadKey{99, 101}));
  EXPECT_EQ(t.streams[t.ops[1].stream].process, 99u);
  ASSERT_EQ(t.spans.size(), 3u);
  EXPECT_EQ(t.names[t.spans[0].name], "step 7");
  EXPECT_EQ(t.spans[1].kind, SpanKind::loader);
  EXPECT_EQ(t.spans[2].kind, SpanKind::blocked);
  EXPECT_EQ(t.framework, "PyTorch");
  EXPECT_EQ(t.devices.at(0).multiprocessors, 132);
}

TEST(Nsys, RefusesWhatIsNoExport) {
  const auto says = [](const std::string& sql, const std::string& text) {
    const NsysFile file(sql);
    try {
      read_nsys(file.path);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
    }
  };
  says("CREATE TABLE x (y)", "without the kernels of Nsight Systems");
  says(
      "CREATE TABLE StringIds (id, value); CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS SELECT 1 AS "
      "start",
      "without the kernels");
  says(
      "CREATE TABLE StringIds (id, value); CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, "
      "deviceId);"
      "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 0), ('soon', 5, 0)",
      "table CUPTI_ACTIVITY_KIND_KERNEL, row 2: column start is no integer");
}

// Whatever bytes are wrong, the answer is a trace or an error.
TEST(Nsys, DamagedFilesNeverCrash) {
  const NsysFile file(kSchema);
  std::ifstream in(file.path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  const std::string path = file.folder / "bad.sqlite";
  uint32_t x = 7;
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bad = good;
    for (int k = 0; k < 20; ++k) {
      x = x * 1664525u + 1013904223u;
      bad[16 + (x >> 8) % (bad.size() - 16)] = static_cast<char>(x >> 24);
    }
    if (i % 3 == 0) bad.resize(bad.size() * static_cast<size_t>(i) / 300);
    std::ofstream(path, std::ios::binary) << bad;
    try {
      read_nsys(path);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 50);
}

TEST(Nsys, OpensByContentNotByName) {
  const NsysFile file(kSchema);
  const auto capture = open_capture(file.path);
  EXPECT_FALSE(capture->read_window());
  EXPECT_EQ(capture->trace().ops.size(), 3u);
}

}  // namespace
}  // namespace saturate::observe
