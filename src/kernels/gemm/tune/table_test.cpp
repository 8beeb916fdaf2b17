// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm/tune/table.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/cache_folder.h"
#include "base/testing/temp_folder.h"

namespace saturate::kernels {
namespace {

using saturate::testing::read_file;
using saturate::testing::TempFolder;
using saturate::testing::write_file;

const TuneMachine kHere{"NVIDIA H200", "9.0", "580.159.04", "cuBLASLt 13.0.2"};

GemmKey key(int64_t m, int64_t n, int64_t k) {
  return {.ab_type = DType::bf16,
          .d_type = DType::f32,
          .ta = Transpose::yes,
          .aligned = true,
          .m = m,
          .n = n,
          .k = k};
}

GemmTable table_of(std::initializer_list<std::pair<GemmKey, GemmChoice>> entries) {
  GemmTable t;
  for (const auto& [k, c] : entries) t.set(k, c);
  return t;
}

TEST(GemmTable, FindsTheShapeItselfThenItsClassThenNothing) {
  const GemmTable t = table_of(
      {{key(4096, 4096, 4096), {"a", "", 1, 1}}, {key(4608, 4096, 4096), {"b", "", 1, 1}}});
  EXPECT_EQ(t.find(key(4096, 4096, 4096))->impl, "a");
  EXPECT_EQ(t.find(key(4608, 4096, 4096))->impl, "b");
  EXPECT_EQ(t.find(key(4000, 4200, 4100))->impl, "b") << "the larger product of the class";
  EXPECT_EQ(t.find(key(4096, 4096, 6000)), nullptr);
  GemmKey other = key(4096, 4096, 4096);
  other.accumulates = true;
  EXPECT_EQ(t.find(other), nullptr);
}

TEST(GemmTable, DoesNotDependOnTheOrderOfItsEntries) {
  const GemmTable a =
      table_of({{key(64, 64, 80), {"a", "", 1, 1}}, {key(64, 80, 64), {"b", "", 1, 1}}});
  const GemmTable b =
      table_of({{key(64, 80, 64), {"b", "", 1, 1}}, {key(64, 64, 80), {"a", "", 1, 1}}});
  EXPECT_EQ(a.find(key(65, 65, 65)), nullptr);
  for (const int64_t n : {63, 64, 66, 79, 80, 81}) {
    const GemmChoice *x = a.find(key(64, n, 66)), *y = b.find(key(64, n, 66));
    ASSERT_EQ(x == nullptr, y == nullptr);
    if (x != nullptr) {
      EXPECT_EQ(*x, *y);
    }
  }
}

TEST(GemmTable, ClassesAreHalfPowersOfTwo) {
  EXPECT_EQ(shape_class(1), 0);
  EXPECT_EQ(shape_class(0), 0);
  EXPECT_EQ(shape_class(2), 2);
  EXPECT_EQ(shape_class(2048), 22);
  EXPECT_EQ(shape_class(3072), 23);
  EXPECT_EQ(shape_class(4096), 24);
  EXPECT_EQ(shape_class(50304), 31);
  for (int64_t v = 1; v < 5000; ++v) EXPECT_LE(shape_class(v), shape_class(v + 1));
}

TEST(GemmTable, KeyTellsAlignmentApart) {
  alignas(16) static float data[64];
  MatmulArgs x{.a = data,
               .b = data,
               .d = data,
               .m = 4,
               .n = 4,
               .k = 4,
               .lda = 4,
               .ldb = 4,
               .ldc = 4,
               .ldd = 4};
  EXPECT_TRUE(gemm_key(x).aligned);
  x.lda = 5;
  EXPECT_FALSE(gemm_key(x).aligned);
  x.lda = 4;
  x.b = data + 1;
  EXPECT_FALSE(gemm_key(x).aligned);
  x.b = data;
  x.bias = data + 2;
  EXPECT_FALSE(gemm_key(x).aligned);
}

TEST(GemmTableFile, ReadsBackWhatWasWritten) {
  const TempFolder folder;
  const std::string path = folder / "deep/gemm.json";
  GemmKey odd = key(77, 1, 9);
  odd.bias = odd.tf32 = odd.accumulates = true;
  odd.aligned = false;
  const GemmTable t =
      table_of({{key(4096, 4096, 4096), {"sgemm_tiled_nvrtc", "128x256x8 \"q\"\n", 2.5, 2.75}},
                {odd, {"matmul_cublaslt_cuda", "42.0.0", 0.001, 0.002}}});
  merge_gemm_table(path, kHere, t);
  const ReadGemmTable r = read_gemm_table(path, kHere);
  EXPECT_EQ(r.problem, "");
  EXPECT_EQ(r.table.entries(), t.entries());
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
}

TEST(GemmTableFile, KeepsEarlierEntriesAndReplacesMeasuredAgain) {
  const TempFolder folder;
  const std::string path = folder / "gemm.json";
  merge_gemm_table(path, kHere,
                   table_of({{key(1, 2, 3), {"a", "", 1, 1}}, {key(4, 5, 6), {"b", "", 1, 1}}}));
  merge_gemm_table(path, kHere, table_of({{key(4, 5, 6), {"c", "x", 2, 3}}}));
  const ReadGemmTable r = read_gemm_table(path, kHere);
  ASSERT_EQ(r.table.entries().size(), 2u);
  EXPECT_EQ(r.table.find(key(4, 5, 6))->impl, "c");
  EXPECT_EQ(r.table.find(key(1, 2, 3))->impl, "a");
}

TEST(GemmTableFile, EveryTornFileIsOneProblemAndNoCrash) {
  const TempFolder folder;
  const std::string path = folder / "gemm.json";
  merge_gemm_table(path, kHere, table_of({{key(4096, 4096, 4096), {"a", "b", 1, 1}}}));
  const std::string whole = read_file(path);
  // Without the last line end the JSON is still whole.
  for (size_t bytes = 0; bytes + 2 < whole.size(); ++bytes) {
    write_file(path, std::string_view(whole).substr(0, bytes));
    const ReadGemmTable r = read_gemm_table(path, kHere);
    ASSERT_TRUE(r.table.empty()) << bytes;
    ASSERT_NE(r.problem.find(path), std::string::npos) << bytes;
    ASSERT_NE(r.problem.find("saturate tune gemm"), std::string::npos) << bytes;
    ASSERT_EQ(r.problem.find('\n'), std::string::npos) << bytes;
  }
}

TEST(GemmTableFile, HandBrokenEntriesNameTheFieldAndItsRule) {
  const TempFolder folder;
  const std::string path = folder / "gemm.json";
  const std::string whole = to_json(kHere, table_of({{key(8, 16, 32), {"a", "b", 1, 1}}}));
  const std::tuple<const char*, const char*, const char*> edits[] = {
      {"\"bf16\"", "\"bf17\"", "entry 0: type is \"bf17\": a type"},
      {"\"TN\"", "\"TX\"", "layout is \"TX\": it must be one of NN, NT, TN, TT"},
      {"[8,16,32]", "[8,16]", ": three whole numbers from 1"},
      {"[8,16,32]", "[8,-16,32]", ": three whole numbers from 1"},
      {"[8,16,32]", "[8,1e99,32]", ": three whole numbers from 1"},
      {"\"aligned\":true", "\"aligned\":1", "aligned is 1: true or false"},
      {"\"ms\":1.0", "\"ms\":\"fast\"", "ms is \"fast\": a number"},
      {"\"impl\":\"a\"", "\"impl\":null", "impl is null: a text"},
      {"saturate gemm table 1", "saturate gemm table 9", "its \"format\" is not"},
  };
  for (const auto& [from, to, expected] : edits) {
    std::string text = whole;
    ASSERT_NE(text.find(from), std::string::npos) << from << " in " << whole;
    text.replace(text.find(from), std::string_view(from).size(), to);
    write_file(path, text);
    const ReadGemmTable r = read_gemm_table(path, kHere);
    EXPECT_TRUE(r.table.empty());
    EXPECT_NE(r.problem.find(expected), std::string::npos) << r.problem;
  }
  for (const char* text : {"", "[]", "null", "7", "{}", "\xff\xfe", "{\"format\":{}}"}) {
    write_file(path, text);
    EXPECT_NE(read_gemm_table(path, kHere).problem, "") << text;
  }
  write_file(path, std::string(100000, '['));
  EXPECT_NE(read_gemm_table(path, kHere).problem, "");
  // Deep where an entry is: reading it must not take a call a level.
  std::string deep = whole;
  deep.replace(deep.find("[8,16,32]"), 9, std::string(1000000, '[') + std::string(1000000, ']'));
  write_file(path, deep);
  EXPECT_NE(read_gemm_table(path, kHere).problem, "");
  std::filesystem::remove(path);
  std::filesystem::create_directory(path);
  EXPECT_NE(read_gemm_table(path, kHere).problem, "");
}

TEST(GemmTableFile, AnotherDriverMakesItStale) {
  const TempFolder folder;
  const std::string path = folder / "gemm.json";
  merge_gemm_table(path, kHere, table_of({{key(1, 2, 3), {"a", "", 1, 1}}}));
  TuneMachine later = kHere;
  later.driver = "590.2";
  const ReadGemmTable r = read_gemm_table(path, later);
  EXPECT_TRUE(r.table.empty());
  EXPECT_NE(r.problem.find("driver 580.159.04, now 590.2"), std::string::npos) << r.problem;
  merge_gemm_table(path, later, table_of({{key(4, 5, 6), {"b", "", 1, 1}}}));
  const ReadGemmTable now = read_gemm_table(path, later);
  EXPECT_EQ(now.problem, "");
  EXPECT_EQ(now.table.entries().size(), 1u) << "measurements of another driver do not mix";
  EXPECT_TRUE(std::filesystem::exists(path + ".broken"));
}

// Two processes, forty writes each, while this one reads: nothing is lost and nothing is ever torn.
TEST(GemmTableFile, TwoProcessesThatTuneAtOnceBothKeepTheirEntries) {
  const TempFolder folder;
  const std::string path = folder / "gemm.json";
  constexpr int kEach = 40;
  std::vector<pid_t> children;
  for (int c = 0; c < 2; ++c) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      for (int i = 0; i < kEach; ++i) {
        try {
          merge_gemm_table(path, kHere, table_of({{key(c + 1, i + 1, 1), {"a", "", 1, 1}}}));
        } catch (...) {
          ::_exit(1);
        }
      }
      ::_exit(0);
    }
    children.push_back(pid);
  }
  for (size_t left = children.size(); left > 0;) {
    EXPECT_EQ(read_gemm_table(path, kHere).problem, "");
    int status = 0;
    if (::waitpid(-1, &status, WNOHANG) <= 0) continue;
    EXPECT_EQ(status, 0);
    --left;
  }
  EXPECT_EQ(read_gemm_table(path, kHere).table.entries().size(), 2u * kEach);
}

TEST(GemmTableFile, NoPlaceToWriteIsAnErrorThatNamesTheRemedy) {
  try {
    merge_gemm_table("/proc/nowhere/gemm.json", kHere, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::io);
    EXPECT_NE(std::string(e.what()).find("SATURATE_CACHE"), std::string::npos);
  }
}

TEST(GemmTableFile, LiesInTheUsersCache) {
  ::setenv("SATURATE_CACHE", "/c", 1);
  EXPECT_EQ(gemm_table_path(user_cache_folder(), kHere), "/c/gemm-nvidia-h200-9.0.json");
  ::unsetenv("SATURATE_CACHE");
  const char* const before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before != nullptr ? before : "";
  ::setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(user_cache_folder(), "/x/saturate");
  ::unsetenv("XDG_CACHE_HOME");
  if (std::getenv("HOME") != nullptr) {
    EXPECT_EQ(user_cache_folder(), std::string(std::getenv("HOME")) + "/.cache/saturate");
  }
  if (!kept.empty()) ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
}

}  // namespace
}  // namespace saturate::kernels
