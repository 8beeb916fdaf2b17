// SPDX-License-Identifier: Apache-2.0
#include "observe/launcher/wait_call.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <string>

namespace saturate::observe {
namespace {

std::string text(int64_t number, const std::string& args) { return std::to_string(number) + args; }

// As the kernel wrote it for python3 in a lock: three more numbers are the stack and the place.
TEST(WaitCall, NumberAndArguments) {
  const auto call = parse_wait_call(text(SYS_futex,
                                         " 0x5581a3c2d8e0 0x80 0x2 0x0 0x0 0x7ffc2d31abd8 "
                                         "0x7ffc2d31abd8 0x7f79cf2ed503\n"));
  ASSERT_TRUE(call);
  EXPECT_EQ(call->kind, CallKind::futex);
  EXPECT_EQ(call->args[0], 0x5581a3c2d8e0u);
  EXPECT_EQ(call->args[2], 2u);
  EXPECT_EQ(call->args[5], 0x7ffc2d31abd8u);
}

TEST(WaitCall, RunningFaultsAndTextsOfAnotherForm) {
  EXPECT_FALSE(parse_wait_call("running\n"));
  EXPECT_FALSE(parse_wait_call(""));
  EXPECT_FALSE(parse_wait_call(text(SYS_read, " 0x3 0x7f")));
  EXPECT_FALSE(parse_wait_call(text(SYS_read, " 3 4 5 6 7 8")));
  const auto fault = parse_wait_call("-1 0x7ffc2d31abd8 0x7f79cf2ed503\n");
  ASSERT_TRUE(fault);
  EXPECT_EQ(fault->kind, CallKind::fault);
}

TEST(WaitCall, KindsByNumber) {
  const std::string args = " 0x4 0x9000 0x1 0x0 0x0 0x0 0x0 0x0";
  EXPECT_EQ(parse_wait_call(text(SYS_pread64, args))->kind, CallKind::read_fd);
  EXPECT_EQ(parse_wait_call(text(SYS_fsync, args))->kind, CallKind::write_fd);
  EXPECT_EQ(parse_wait_call(text(SYS_recvfrom, args))->kind, CallKind::socket);
  EXPECT_EQ(parse_wait_call(text(SYS_clock_nanosleep, args))->kind, CallKind::sleep);
  EXPECT_EQ(parse_wait_call(text(SYS_openat, args))->path_at, 0x9000u);
  EXPECT_EQ(parse_wait_call(text(999'999, args))->kind, CallKind::other);
  // A poll of nothing sleeps.
  EXPECT_EQ(parse_wait_call(text(SYS_ppoll, args))->kind, CallKind::poll);
  EXPECT_EQ(parse_wait_call(text(SYS_ppoll, " 0x0 0x0 0x1 0x0 0x0 0x0 0x0 0x0"))->kind,
            CallKind::sleep);
  EXPECT_EQ(parse_wait_call(text(SYS_pselect6, " 0x0 0x0 0x0 0x0 0x1 0x0 0x0 0x0"))->kind,
            CallKind::sleep);
}

TEST(WaitCall, KindsByTheKernelsFunction) {
  EXPECT_EQ(call_kind_of_wchan("futex_wait_queue"), CallKind::futex);
  EXPECT_EQ(call_kind_of_wchan("hrtimer_nanosleep"), CallKind::sleep);
  EXPECT_EQ(call_kind_of_wchan("folio_wait_bit_common"), CallKind::read_fd);
  EXPECT_EQ(call_kind_of_wchan("jbd2_log_wait_commit"), CallKind::write_fd);
  EXPECT_EQ(call_kind_of_wchan("sk_wait_data"), CallKind::socket);
  EXPECT_EQ(call_kind_of_wchan("0"), CallKind::other);
}

}  // namespace
}  // namespace saturate::observe
