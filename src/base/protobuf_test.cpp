// SPDX-License-Identifier: Apache-2.0
#include "base/protobuf.h"

#include <gtest/gtest.h>

namespace saturate {
namespace {

// Bytes from protobuf.dev, "Encoding": field 1 is 150, field 2 is "testing", field 3 a message with field 1 = 150.
TEST(Protobuf, WritesTheBytesOfItsSpecification) {
  const ProtobufMessage inner = ProtobufMessage().integer(1, 150);
  EXPECT_EQ(inner.str(), "\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().bytes(2, "testing").str(), "\x12\x07testing");
  EXPECT_EQ(ProtobufMessage().message(3, inner).str(), "\x1a\x03\x08\x96\x01");
  EXPECT_EQ(ProtobufMessage().float32(1, 1.0f).str(), std::string("\x0d\0\0\x80\x3f", 5));
  EXPECT_EQ(ProtobufMessage().float64(1, 1.0).str(), std::string("\x09\0\0\0\0\0\0\xf0\x3f", 9));
}

TEST(Protobuf, ReadsWhatItWrote) {
  const std::string bytes =
      ProtobufMessage().integer(5, UINT64_MAX).bytes(16, "").float32(3, 2.0f).str();
  ProtobufFields fields(bytes);
  ProtobufFields::Field f;
  ASSERT_TRUE(fields.next(f));
  EXPECT_EQ(f.number, 5u);
  EXPECT_EQ(f.integer, UINT64_MAX);
  ASSERT_TRUE(fields.next(f) && f.number == 16 && f.bytes.empty());
  ASSERT_TRUE(fields.next(f) && f.number == 3 && f.bytes.size() == 4);
  EXPECT_TRUE(fields.at_end());
  for (size_t n = 1; n + 1 < bytes.size();
       ++n) {  // cut off: an end or a malformed field, never more
    ProtobufFields cut(std::string_view(bytes).substr(0, n));
    while (cut.next(f)) EXPECT_LE(f.bytes.size(), n);
  }
}

}  // namespace
}  // namespace saturate
