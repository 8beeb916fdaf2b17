// SPDX-License-Identifier: Apache-2.0
// The test of the layouts' tests: what each collective of a step brings is left out, averaged, put
// in another order or taken from the call before, one collective at a time, and the comparison with
// one rank must see it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "train/layout_harness_test.h"

namespace saturate::train {
namespace {

using parallel::Collective;
using parallel::CollectiveKind;

enum class Rule : uint8_t { keep, drop, average, rotate, stale };
const char* name_of(Rule rule) {
  constexpr const char* kNames[] = {"kept", "dropped", "averaged", "rotated", "stale"};
  return kNames[static_cast<size_t>(rule)];
}

struct Call {
  CollectiveKind kind;
  int group_size;
  std::string text;
  bool brings;  // something to this rank, and does not only send
};

// Passes everything on, and breaks one rule at one call of a step: every rank at its call of that
// number.
class Tampered final : public parallel::Communicator {
 public:
  Tampered(parallel::Communicator& inner, Rule rule, int64_t call)
      : Communicator({}, inner.rank(), inner.size()), inner_(inner), rule_(rule), call_(call) {}
  const char* name() const noexcept override { return "tampered"; }
  void wait(parallel::Ticket ticket, const Context& ctx) override { inner_.wait(ticket, ctx); }
  void broadcast(void* data, int64_t bytes, int root) override {
    inner_.broadcast(data, bytes, root);
  }
  double all_reduce_sum(double value) override { return inner_.all_reduce_sum(value); }
  double all_reduce_max(double value) override { return inner_.all_reduce_max(value); }
  void set_step(int64_t step) noexcept override { inner_.set_step(step); }
  void set_action(const char* action, parallel::Pace pace) noexcept override {
    inner_.set_action(action, pace);
  }
  void report_failure(const std::exception& e) override { inner_.report_failure(e); }

  bool in_step = false;
  std::vector<Call> calls;   // of steps
  bool nothing_new = false;  // what is stale is what the call would have brought

 private:
  void connect(const parallel::Group& group) override { inner_.make_group(group.ranks); }

  parallel::Ticket run(const Collective& c, const void* input, void* output,
                       const Context& ctx) override {
    if (!in_step) return inner_.start(c, input, output, ctx);
    const auto number = static_cast<int64_t>(calls.size());
    const int position = c.group.position(rank());
    const size_t bytes = output_bytes(c);
    calls.push_back({c.kind, c.group.size(), describe(c), bytes > 0});
    std::vector<char> before(static_cast<const char*>(output),
                             static_cast<const char*>(output) + bytes);
    const char* own = static_cast<const char*>(input);
    std::vector<char> part;  // of a sum that may take its place
    if (c.kind == CollectiveKind::reduce_scatter) {
      part.assign(own + static_cast<size_t>(position) * bytes,
                  own + static_cast<size_t>(position + 1) * bytes);
      own = part.data();
    }
    const parallel::Ticket ticket = inner_.start(c, input, output, ctx);
    std::vector<char>& last = last_[{c.kind, bytes}];
    if (number == call_ && rule_ != Rule::keep) {
      inner_.wait(ticket, ctx);
      const std::vector<char> right(static_cast<char*>(output), static_cast<char*>(output) + bytes);
      tamper(c, position, input == nullptr ? before.data() : own, static_cast<char*>(output), last);
      nothing_new = rule_ == Rule::stale && last == right;
      last = right;
      return {};
    }
    if (rule_ == Rule::stale) {
      inner_.wait(ticket, ctx);
      last.assign(static_cast<char*>(output), static_cast<char*>(output) + bytes);
      return {};
    }
    return ticket;
  }

  static size_t output_bytes(const Collective& c) {
    int64_t elements = c.count;
    if (c.kind == CollectiveKind::all_gather) elements *= c.group.size();
    if (c.kind == CollectiveKind::all_to_all || c.kind == CollectiveKind::send_receive) {
      elements = 0;
      for (const int64_t n : c.receive_counts) elements += n;
    }
    return static_cast<size_t>(elements) * size_of(c.dtype);
  }

  void tamper(const Collective& c, int position, const char* input, char* output,
              const std::vector<char>& last) const {
    const size_t bytes = output_bytes(c), part = static_cast<size_t>(c.count) * size_of(c.dtype);
    const int ranks = c.group.size();
    switch (rule_) {
      case Rule::keep:
        return;
      case Rule::average:
        for (int64_t i = 0; i < c.count; ++i) {
          if (c.dtype == DType::f64) reinterpret_cast<double*>(output)[i] /= ranks;
          if (c.dtype == DType::f32)
            reinterpret_cast<float*>(output)[i] /= static_cast<float>(ranks);
        }
        return;
      case Rule::rotate:
        if (c.kind == CollectiveKind::all_gather)
          std::rotate(output, output + part, output + bytes);
        else
          std::rotate(output, output + bytes / static_cast<size_t>(ranks), output + bytes);
        return;
      case Rule::stale:
        if (last.empty())
          std::memset(output, 0, bytes);
        else
          std::memcpy(output, last.data(), bytes);
        return;
      case Rule::drop:
        if (c.kind == CollectiveKind::all_reduce || c.kind == CollectiveKind::reduce_scatter) {
          std::memcpy(output, input, bytes);
        } else if (c.kind == CollectiveKind::all_gather) {
          std::vector<char> own(output + static_cast<size_t>(position) * part,
                                output + static_cast<size_t>(position + 1) * part);
          std::memset(output, 0, bytes);
          std::memcpy(output + static_cast<size_t>(position) * part, own.data(), part);
        } else {
          std::memset(output, 0, bytes);
        }
        return;
    }
  }

  parallel::Communicator& inner_;
  const Rule rule_;
  const int64_t call_;
  std::map<std::pair<CollectiveKind, size_t>, std::vector<char>> last_;
};

// The calls of rank 0 in two steps; or what the comparison said of a mutant.
std::vector<Call> calls_of(const LayoutCase& c, Rule rule, int64_t call, std::string* verdict) {
  std::vector<Call> calls;
  bool nothing_new = false;
  const auto body = [&](parallel::Communicator& ranks, const LayoutTask& given) {
    Tampered tampered(ranks, rule, call);
    LayoutTask task = given;
    task.fill = [&](const data::BatchLayout& l, int64_t number, int32_t* words) {
      given.fill(l, number, words);
      tampered.in_step = true;
    };
    task.after_step = [&](const StepRecord&) { tampered.in_step = false; };
    LayoutResult result = run_layout(tampered, task);
    if (ranks.rank() == 0) calls = tampered.calls;
    if (ranks.rank() == 0) nothing_new = tampered.nothing_new;
    return result;
  };
  try {
    *verdict = first_beyond(distances(reference_of(c), result_of(c, body)), kBound);
  } catch (const Error& e) {
    *verdict = e.what();
  }
  // A layer that is gathered again at once.
  if (nothing_new && verdict->empty()) *verdict = "the call before brought the same";
  return calls;
}

std::vector<Rule> rules_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::reduce_scatter:
      return {Rule::drop, Rule::average, Rule::stale};
    default:
      return {Rule::drop, Rule::rotate, Rule::stale};
  }
}

class LayoutMutants : public testing::TestWithParam<const char*> {};

TEST_P(LayoutMutants, EveryCollectiveOfAStepIsNeeded) {
  const LayoutCase c = case_of(GetParam());
  const std::string refusal = refusal_of(c);
  if (!refusal.empty()) GTEST_SKIP() << refusal;
  std::string verdict;
  const std::vector<Call> calls = calls_of(c, Rule::keep, -1, &verdict);
  ASSERT_EQ(verdict, "");
  ASSERT_FALSE(calls.empty());
  // A few calls of each kind that differ in what they move, spread over the steps; the rules in turn.
  constexpr size_t kMost = 40;
  const size_t stride = std::max<size_t>(1, calls.size() / kMost);
  size_t turn = 0;
  for (size_t i = 0; i < calls.size(); i += stride) {
    if (!calls[i].brings) continue;
    const std::vector<Rule> rules = rules_of(calls[i].kind);
    const Rule rule = rules[turn++ % rules.size()];
    calls_of(c, rule, static_cast<int64_t>(i), &verdict);
    EXPECT_NE(verdict, "") << calls[i].text << ", call " << i << ", " << name_of(rule)
                           << ": nobody saw it";
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LayoutMutants,
                         testing::Values("translation dp=2,zero=0 4", "wide-gpt dp=3,zero=1 6",
                                         "wide-gpt dp=2,zero=3 2", "translation dp=2,pp=2,zero=2 4",
                                         "translation dp=4,dp_shard=2,zero=3 4"));

}  // namespace
}  // namespace saturate::train
