// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/testing/temp_folder.h"

namespace saturate::model {
namespace {

using testing::read_file;
using testing::TempFolder;
using testing::write_file;

std::string image(std::string header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string out(reinterpret_cast<const char*>(&length), sizeof(length));
  return out + header + std::string(data_bytes, '\0');
}

std::vector<TensorView> parse(const std::string& file) {
  return parse_safetensors(std::as_bytes(std::span(file)), "file");
}

TEST(Safetensors, RoundTrip) {
  const TempFolder folder;
  const std::string path = folder / "model.safetensors";
  const std::vector<float> a = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> b = {0x3F80, 0xC000, 0x7F80};  // 1, -2, infinity as bf16
  const std::vector<uint16_t> h = {0x3C00, 0xC000, 0x0001, 0x7C00, 0x8000};
  const std::vector<TensorSpec> specs = {{"z.first", "F32", {2, 3}},
                                         {"a.second", "BF16", {3}},
                                         {"empty", "F32", {0, 5}},
                                         {"h", "F16", {5}}};
  SafetensorsWriter writer(path, specs, {{"step", "12"}});
  writer.write(std::as_bytes(std::span(a)).first(5));  // pieces may end anywhere
  writer.write(std::as_bytes(std::span(a)).subspan(5));
  writer.write(std::as_bytes(std::span(b)));
  writer.write(std::as_bytes(std::span(h)));
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.commit();
  EXPECT_EQ(std::filesystem::file_size(path),
            SafetensorsWriter::file_bytes(specs, {{"step", "12"}}));
  uint64_t header = 0;
  std::memcpy(&header, read_file(path).data(), sizeof(header));
  EXPECT_EQ(header % 8, 0u);

  const SafetensorsReader reader(folder.path());
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.metadata().at("step"), "12");
  ASSERT_EQ(reader.tensors().size(), 4u);
  const TensorView* first = reader.find("z.first");
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(first->shape, (std::vector<int64_t>{2, 3}));
  std::vector<float> out(4);
  read_floats(*first, 2, out);
  EXPECT_EQ(out, (std::vector<float>{3, 4, 5, 6}));
  std::vector<float> three(3);
  read_floats(*reader.find("a.second"), 0, three);
  EXPECT_EQ(three, (std::vector<float>{1, -2, std::numeric_limits<float>::infinity()}));
  std::vector<float> five(5);
  read_floats(*reader.find("h"), 0, five);
  EXPECT_EQ(five,
            (std::vector<float>{1, -2, 0x1p-24f, std::numeric_limits<float>::infinity(), -0.0f}));
  EXPECT_EQ(reader.find("empty")->elements(), 0);
  EXPECT_EQ(reader.find("nothing"), nullptr);
}

// Tensors share pages at their ends; whatever is given back comes from the file again.
TEST(Safetensors, WhatIsReleasedIsReadAgain) {
  const TempFolder folder;
  constexpr int64_t kCount = 5000;  // 20 kB: some whole pages and parts of two
  std::vector<float> values(kCount), out(kCount);
  std::vector<TensorSpec> specs;
  for (const char* name : {"a", "b", "c"}) specs.push_back({name, "F32", {kCount}});
  SafetensorsWriter writer(folder / "model.safetensors", specs);
  for (int t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < kCount; ++i)
      values[static_cast<size_t>(i)] = static_cast<float>(t * kCount + i + 1);
    writer.write(std::as_bytes(std::span(values)));
  }
  writer.commit();
  const SafetensorsReader reader(folder.path());
  for (const char* released : {"b", "a", "c", "b"}) {
    reader.release(*reader.find(released));
    for (int t = 0; t < 3; ++t) {
      read_floats(*reader.find(specs[static_cast<size_t>(t)].name), 0, out);
      for (int64_t i = 0; i < kCount; ++i)
        ASSERT_EQ(out[static_cast<size_t>(i)], static_cast<float>(t * kCount + i + 1)) << released;
    }
  }
}

TEST(Safetensors, ReadsShards) {
  const TempFolder folder;
  const float one = 1, two = 2;
  for (const auto& [file, name, value] : {std::tuple{"model-00001-of-00002.safetensors", "a", &one},
                                          {"model-00002-of-00002.safetensors", "b", &two}}) {
    SafetensorsWriter writer(folder / file, {{name, "F32", {1}}});
    writer.write(std::span(value, 1));
    writer.commit();
  }
  const std::string index = folder / "model.safetensors.index.json";
  write_file(index, R"({"metadata":{"total_size":8},"weight_map":{
    "a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}})");
  const SafetensorsReader reader(folder.path());
  std::vector<float> out(1);
  read_floats(*reader.find("b"), 0, out);
  EXPECT_EQ(out[0], 2.0f);

  for (const char* bad :
       {R"({"weight_map":{"a":"../secret.safetensors"}})", R"({"weight_map":{"a":3}})",
        R"({"weight_map":{"c":"model-00001-of-00002.safetensors"}})", R"({})",
        R"({"weight_map":{"a":"missing.safetensors"}})"}) {
    write_file(index, bad);
    EXPECT_THROW(SafetensorsReader{folder.path()}, Error) << bad;
  }
}

TEST(Safetensors, NamesWhatIsMissing) {
  const TempFolder folder;
  EXPECT_THROW(SafetensorsReader{folder.path()}, Error);
  EXPECT_THROW(SafetensorsReader{folder / "absent.safetensors"}, Error);
  write_file(folder / "empty.safetensors", "");
  EXPECT_THROW(SafetensorsReader{folder / "empty.safetensors"}, Error);
}

struct Hostile {
  const char* name;
  std::string file;
  const char* reason;
};

class SafetensorsHostile : public ::testing::TestWithParam<Hostile> {};

TEST_P(SafetensorsHostile, IsRefusedWithTheReason) {
  try {
    parse(GetParam().file);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Errc::invalid_argument);
    EXPECT_NE(std::string(e.what()).find(GetParam().reason), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("file"), std::string::npos) << e.what();
  }
}

std::string tensor(const char* fields, size_t data = 8) {
  return image(std::string(R"({"t":{)") + fields + "}}", data);
}

INSTANTIATE_TEST_SUITE_P(
    Headers, SafetensorsHostile,
    ::testing::Values(
        Hostile{"empty", "", "too few"}, Hostile{"seven_bytes", "1234567", "too few"},
        Hostile{"huge_length", std::string(8, '\xff') + "{}", "claims"},
        Hostile{"length_past_end", image("{}", 0).substr(0, 9), "claims"},
        Hostile{"no_json", image("hello", 0), "JSON"},
        Hostile{"array", image("[]", 0), "no JSON object"},
        Hostile{"deep", image(std::string(1000, '['), 0), "deeper"},
        Hostile{"deep_member", image(R"({"a":{"b":[[[1]]]}})", 0), "deeper"},
        Hostile{"invalid_utf8", image("{\"\xff\":{}}", 0), "JSON"},
        Hostile{"duplicate", image(R"({"t":{},"t":{}})", 0), "twice"},
        Hostile{"no_object", image(R"({"t":3})", 0), "no dtype"},
        Hostile{"no_shape", tensor(R"("dtype":"F32","data_offsets":[0,8])"), "no shape"},
        Hostile{"no_offsets", tensor(R"("dtype":"F32","shape":[2])"), "no data_offsets"},
        Hostile{"three_offsets", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,4,8])"),
                "no data_offsets"},
        Hostile{"dtype", tensor(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"),
                "unknown dtype"},
        Hostile{"negative_size", tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"),
                "no whole number"},
        Hostile{"real_size", tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"),
                "no whole number"},
        Hostile{"size_above_int64",
                tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"),
                "no whole number"},
        Hostile{"overflow",
                tensor(R"("dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,8])"),
                "needs more"},
        Hostile{"claims_terabytes",
                tensor(R"("dtype":"F32","shape":[1099511627776],"data_offsets":[0,8])"),
                "needs more"},
        Hostile{
            "rank",
            tensor(
                R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,8],"data_offsets":[0,8])"),
            "dimensions"},
        Hostile{"cut_short", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 7),
                "cut short"},
        Hostile{"reversed", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), "outside"},
        Hostile{"negative_offset", tensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"),
                "no whole number"},
        Hostile{"wrong_bytes", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,8])"),
                "needs 4 bytes"},
        Hostile{"hole_before", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[4,8])"), "hole"},
        Hostile{"bytes_after", tensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"),
                "after the last"},
        Hostile{"overlap",
                image(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                      8),
                "inside"},
        Hostile{"metadata_no_object", image(R"({"__metadata__":3})", 0), "__metadata__"},
        Hostile{"metadata_value", image(R"({"__metadata__":{"a":3}})", 0), "__metadata__"}),
    [](const auto& c) { return std::string(c.param.name); });

TEST(Safetensors, ZeroSizesHideNoOverflow) {
  const auto t = parse(tensor(
      R"("dtype":"F64","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0])",
      0));
  EXPECT_EQ(t[0].elements(), 0);
}

TEST(Safetensors, EveryTruncationAndBitFlipIsHandled) {
  const std::string good = image(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  EXPECT_EQ(parse(good).size(), 1u);
  for (size_t n = 0; n < good.size(); ++n) EXPECT_THROW(parse(good.substr(0, n)), Error) << n;
  for (size_t bit = 0; bit < 8 * (good.size() - 8); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    try {
      for (const TensorView& t : parse(bad))
        EXPECT_EQ(t.bytes, 8u);  // a renamed tensor is no damage
    } catch (const Error&) {
    }
  }
}

TEST(Safetensors, RefusesToReadIntegersAsWeights) {
  const auto t = parse(tensor(R"("dtype":"I64","shape":[1],"data_offsets":[0,8])"));
  std::vector<float> out(1);
  EXPECT_THROW(read_floats(t[0], 0, out), Error);
}

// Known answer of the XXH3 specification for no input.
TEST(Safetensors, ChecksumIsXxh3) {
  const TempFolder folder;
  EXPECT_EQ(xxh3({}), 0x2D06800538D394C2u);
  const std::string text(3 << 20, 'x');
  write_file(folder / "file", text);
  EXPECT_EQ(xxh3_file(folder / "file"), xxh3(std::as_bytes(std::span(text))));
}

}  // namespace
}  // namespace saturate::model
