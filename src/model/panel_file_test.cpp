// SPDX-License-Identifier: Apache-2.0
// Panels that were kept give the bits of those that are packed at each start, and are passed over as soon as anything
// about them or their folder is not as it was.
#include "model/panel_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/testing/temp_folder.h"
#include "model/decode_reference_test.h"
#include "model/model_folder.h"
#include "model/translator.h"

namespace saturate::model {
namespace {

namespace fs = std::filesystem;
using kernels::PackedType;

ModelConfig small() {
  ModelConfig c;
  c.d_model = 40;
  c.encoder_layers = c.decoder_layers = 2;
  c.heads = c.kv_heads = 2;
  c.head_size = 20;
  c.ffn = 52;
  c.vocab_source = c.vocab_target = 57;
  c.max_positions = 40;
  c.pad_id = 3;
  c.eos_id = 2;
  c.decoder_start_id = 3;
  return c;
}

TranslatorOptions options() {
  TranslatorOptions o;
  o.sentences = 8;
  o.source_rows = 48;
  o.max_source = 9;
  o.max_target = 14;
  o.beam = 2;
  return o;
}

const std::vector<std::vector<int32_t>> kSources{
    {5, 17, 44, 2}, {9, 2}, {56, 4, 30, 31, 32, 2}, {21, 8, 8, 50, 13, 2}};

using Search = std::vector<std::vector<Hypothesis>>;

void expect_equal(const Search& a, const Search& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a[i].size(), b[i].size());
    for (size_t h = 0; h < a[i].size(); ++h) {
      EXPECT_EQ(a[i][h].ids, b[i][h].ids);
      EXPECT_EQ(a[i][h].log_probability, b[i][h].log_probability);  // bit for bit
    }
  }
}

void settle() { std::this_thread::sleep_for(std::chrono::milliseconds(2100)); }

class PanelFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("SATURATE_CACHE", cache_.c_str(), 1);
    fs::create_directories(folder_);
    const TestModel written(config_, DType::f32, {}, 4);
    save_model(folder_, config_, {}, written.store);
  }
  void TearDown() override { ::unsetenv("SATURATE_CACHE"); }

  // A store of another model's weights, into which the folder is read: what stays shows.
  Search translate(PackedType type, bool tables, const std::shared_ptr<const PanelFile>& panels) {
    TestModel m(config_, DType::f32, {}, 6);
    m.store.pack(type, tables);
    load_weights(folder_, config_, m.store, nullptr, panels);
    if (panels != nullptr) {
      int64_t found = 0;
      for (size_t i = 0; i < m.store.specs().size(); ++i) {
        const ParameterId id{static_cast<int32_t>(i)};
        const ParameterSpec& p = m.store.specs()[i];
        if (!m.store.is_packed(id)) continue;
        const char* const there = panels->find(p.name, p.rows, p.cols);
        EXPECT_EQ(m.store.packed(id)->view().panels, there) << p.name;
        found += there != nullptr ? 1 : 0;
      }
      EXPECT_GT(found, 10);
    }
    Translator translator(m.model, m.store, options());
    return translator.search(kSources);
  }

  KeptPanels keep(PackedType type, bool tables = true) {
    const PanelSource source = settled_source(folder_, config_);
    TestModel m(config_, DType::f32, {}, 7);
    m.store.pack(type, tables);
    load_weights(folder_, config_, m.store);
    return keep_panels(folder_, config_, type, m.store, source);
  }

  std::shared_ptr<const PanelFile> open(PackedType type = PackedType::f32) {
    return PanelFile::open(folder_, config_, type);
  }

  testing::TempFolder temp_;
  const std::string folder_ = temp_ / "model", cache_ = temp_ / "cache";
  ModelConfig config_ = small();
};

TEST_F(PanelFileTest, GivesTheBitsOfPackingAtEachStart) {
  const std::pair<PackedType, bool> cases[] = {{PackedType::f32, true},
                                               {PackedType::f32, false},
                                               {PackedType::s8, false},
                                               {PackedType::s8, true},
                                               {PackedType::bf16, true}};
  for (const auto& [type, tables] : cases) {
    SCOPED_TRACE(::testing::Message() << static_cast<int>(type) << " tables " << tables);
    const Search want = translate(type, tables, nullptr);
    const KeptPanels kept = keep(type, tables);
    EXPECT_EQ(fs::file_size(kept.path), kept.bytes);
    const auto panels = open(type);
    ASSERT_NE(panels, nullptr);
    EXPECT_TRUE(panels->is_current());
    expect_equal(translate(type, tables, panels), want);
    // What is mapped stays when the file goes.
    EXPECT_EQ(forget_panels(folder_), kept.bytes);
    expect_equal(translate(type, tables, panels), want);
    EXPECT_EQ(open(type), nullptr);
  }
  // Whoever reads masters of fp32 tables has the same bits as who reads panels of them.
  expect_equal(translate(PackedType::f32, true, nullptr),
               translate(PackedType::f32, false, nullptr));
}

TEST_F(PanelFileTest, IsPassedOverWhenDamaged) {
  const std::string path = keep(PackedType::s8).path;
  const std::string whole = testing::read_file(path);
  EXPECT_EQ(open(PackedType::f32), nullptr) << "another type";
  ASSERT_GT(whole.size(), 8192u);
  const auto write = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  const auto flipped = [&](size_t at) {
    std::string bytes = whole;
    bytes[at] = static_cast<char>(bytes[at] ^ 1);
    return bytes;
  };
  const size_t name = whole.find("encoder"), last_panel = whole.size() - 64;
  ASSERT_LT(name, 4096u);
  for (const size_t at : {size_t{0}, size_t{17}, size_t{23}, size_t{30}, name, last_panel}) {
    write(flipped(at));
    EXPECT_EQ(open(PackedType::s8), nullptr) << "byte " << at;
  }
  for (const size_t bytes : {size_t{0}, size_t{10}, size_t{39}, size_t{100}, size_t{4096},
                             whole.size() / 2, whole.size() - 4096, whole.size() - 64}) {
    write(whole.substr(0, bytes));
    EXPECT_EQ(open(PackedType::s8), nullptr) << bytes << " bytes";
  }
  write(whole);
  EXPECT_NE(open(PackedType::s8), nullptr);
  // Also when it was once found whole, and the time of its last write is set back.
  settle();
  EXPECT_NE(open(PackedType::s8), nullptr);
  struct stat before {};
  ASSERT_EQ(::stat(path.c_str(), &before), 0);
  const int fd = ::open(path.c_str(), O_WRONLY);
  const char other = static_cast<char>(whole[last_panel] ^ 1);
  ASSERT_EQ(::pwrite(fd, &other, 1, static_cast<off_t>(last_panel)), 1);
  ::close(fd);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_EQ(open(PackedType::s8), nullptr);
}

TEST_F(PanelFileTest, IsPassedOverWhenTheFolderIsAnother) {
  const std::string path = keep(PackedType::f32).path;
  EXPECT_NE(open(), nullptr);
  EXPECT_NE(PanelFile::open(folder_ + "/../model", config_, PackedType::f32), nullptr)
      << "the same folder by another name";
  fs::copy(folder_, temp_ / "copy");
  settle();
  EXPECT_EQ(PanelFile::open(temp_ / "copy", config_, PackedType::f32), nullptr) << "a copy";
  // Its panels under the copy's name.
  const PanelSource source = settled_source(temp_ / "copy", config_);
  TestModel m(config_, DType::f32, {}, 7);
  m.store.pack(PackedType::f32, true);
  const KeptPanels others = keep_panels(temp_ / "copy", config_, PackedType::f32, m.store, source);
  EXPECT_NE(others.path, path);
  fs::copy_file(path, others.path, fs::copy_options::overwrite_existing);
  EXPECT_EQ(PanelFile::open(temp_ / "copy", config_, PackedType::f32), nullptr);
  // Parameters made otherwise of the same tensors.
  ModelConfig other = config_;
  other.ffn = 48;
  EXPECT_EQ(PanelFile::open(folder_, other, PackedType::f32), nullptr) << "another mapping";

  const auto panels = open();
  ASSERT_NE(panels, nullptr);
  {
    std::fstream file(folder_ + "/model.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(-4, std::ios::end);
    file.write("\0\0\0\0", 4);
  }
  EXPECT_FALSE(panels->is_current());
  EXPECT_EQ(open(), nullptr) << "just written";
  settle();
  EXPECT_EQ(open(), nullptr) << "written";
  EXPECT_FALSE(panels->is_current());
  keep(PackedType::f32);
  EXPECT_NE(open(), nullptr);
  std::ofstream(folder_ + "/new.json") << "{}";
  settle();
  EXPECT_EQ(open(), nullptr) << "one more file";
}

TEST_F(PanelFileTest, IsItsUsersAlone) {
  const ::mode_t before = ::umask(0);
  const std::string path = keep(PackedType::f32).path;
  ::umask(before);
  struct stat file {
  }, folder{};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  ASSERT_EQ(::stat(fs::path(path).parent_path().c_str(), &folder), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_EQ(folder.st_mode & 0777, 0700u);
  EXPECT_NE(open(), nullptr);
  ASSERT_EQ(::chmod(path.c_str(), 0620), 0);
  EXPECT_EQ(open(), nullptr) << "others may write to it";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_NE(open(), nullptr);
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    EXPECT_EQ(open(), nullptr) << "another user's";
  }
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(open(), nullptr) << "a folder";
}

std::string message_of(const std::function<void()>& call, Errc code) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  return "nothing was refused";
}

TEST_F(PanelFileTest, SaysWhatCannotBeKept) {
  const PanelSource source = settled_source(folder_, config_);
  TestModel m(config_, DType::f32, {}, 7);
  const auto keep_now = [&] { keep_panels(folder_, config_, PackedType::f32, m.store, source); };
  EXPECT_NE(message_of(keep_now, Errc::invalid_argument).find("no matrix"), std::string::npos);
  m.store.pack(PackedType::f32, true);
  std::ofstream(temp_ / "file") << "no folder";
  ::setenv("SATURATE_CACHE", (temp_ / "file").c_str(), 1);
  const std::string refused = message_of(keep_now, Errc::io);
  EXPECT_NE(refused.find(temp_ / "file"), std::string::npos) << refused;
  EXPECT_NE(refused.find("set SATURATE_CACHE"), std::string::npos) << refused;
  EXPECT_EQ(open(), nullptr);
  EXPECT_EQ(forget_panels(folder_), 0u);

  // A folder that is written while it is read: what was kept before stays.
  ::setenv("SATURATE_CACHE", cache_.c_str(), 1);
  const std::string path = keep(PackedType::f32).path;
  const std::string whole = testing::read_file(path);
  std::ofstream(folder_ + "/config.json", std::ios::app) << "\n";
  const std::string changed = message_of(keep_now, Errc::io);
  EXPECT_NE(changed.find("has changed"), std::string::npos) << changed;
  EXPECT_EQ(testing::read_file(path), whole);
  std::ofstream(path + ".1.tmp") << "12345";
  EXPECT_EQ(forget_panels(folder_), whole.size() + 5);
  EXPECT_TRUE(fs::is_empty(fs::path(path).parent_path()));
}

}  // namespace
}  // namespace saturate::model
