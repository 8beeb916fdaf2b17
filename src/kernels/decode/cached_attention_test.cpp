// SPDX-License-Identifier: Apache-2.0
#include "kernels/decode/cached_attention.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "kernels/gemm/packed/packed_linear.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Guarded;
using testing::Values;

struct Shape {
  int64_t heads, kv_heads, head_size, max_positions;
};

class CachedAttention : public testing::OnTarget {
 protected:
  // Weights of values up to `largest` may be rounded to dtype before they are summed.
  double rounded_weights(double largest) const {
    return dtype() == DType::f32 ? 0 : unit() * largest;
  }
  Guarded ints(const std::vector<int32_t>& v) const {
    return Guarded(stream(), DType::i32, Values(v.begin(), v.end()));
  }
  void masks_caps_and_biases(int64_t heads, int64_t size, int64_t most);
};
INSTANTIATE_TEST_SUITE_P(Targets, CachedAttention, testing::all_targets(), testing::target_name);

enum class Layout { contiguous, slots, paged };
constexpr int64_t kRows = 5;
constexpr int64_t kPage = 16;  // positions

// Where the histories of all rows lie. Position j of any row may lie with any row or on any page;
// the slots that this step writes are read by nobody else.
struct Cache {
  Layout layout;
  int64_t max_positions, pages;  // pages of a row
  std::vector<int32_t> starts, positions, slots, page_table;

  Cache(Layout l, int64_t most)
      : layout(l), max_positions(most), pages((most + kPage - 1) / kPage) {
    for (int64_t r = 0; r < kRows; ++r) {
      starts.push_back(static_cast<int32_t>(r * most));
      positions.push_back(static_cast<int32_t>((most - 1) * (r + 1) / kRows));
    }
    positions[0] = 0;
    for (int64_t i = 0; i < kRows * most; ++i)
      slots.push_back(static_cast<int32_t>((i * 7 + i / 5) % kRows * most + i % most));
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t j = 0; j < most; ++j) {
        int32_t& slot = slots[static_cast<size_t>(r * most + j)];
        for (size_t o = 0; o < kRows; ++o)
          if (slot == starts[o] + positions[o])
            slot = starts[static_cast<size_t>(r)] + static_cast<int32_t>(j);
      }
    // Pages in reverse order; all rows share page 0 of row 4 where it comes before their new token.
    for (int64_t n = 0; n < kRows * pages; ++n)
      page_table.push_back(static_cast<int32_t>(kRows * pages - 1 - n));
    for (size_t r = 0; r < kRows; ++r)
      if (positions[r] >= kPage)
        page_table[r * static_cast<size_t>(pages)] = page_table[4 * static_cast<size_t>(pages)];
  }

  int64_t count() const {
    return layout == Layout::paged ? kRows * pages * kPage : kRows * max_positions;
  }
  int64_t slot(int64_t row, int64_t j) const {
    const auto r = static_cast<size_t>(row);
    if (layout == Layout::paged)
      return page_table[static_cast<size_t>(row * pages + j / kPage)] * kPage + j % kPage;
    if (layout == Layout::slots && j < positions[r])
      return slots[static_cast<size_t>(starts[r] + j)];
    return starts[r] + j;
  }
};

// o and the cache after the step; `cache` is the one before.
Values reference(const Cache& where, const Shape& s, const std::vector<int32_t>& finished,
                 const Values& qkv, double scale, Values& cache) {
  const int64_t q_width = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  Values want(static_cast<size_t>(kRows * q_width));
  for (int64_t r = 0; r < kRows; ++r) {
    if (finished[static_cast<size_t>(r)] != 0) continue;
    const double* row = &qkv[static_cast<size_t>(r * (q_width + 2 * kv))];
    const int64_t last = where.positions[static_cast<size_t>(r)];
    std::copy_n(row + q_width, 2 * kv, cache.begin() + where.slot(r, last) * 2 * kv);
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t column = h / (s.heads / s.kv_heads) * s.head_size;
      Values p;
      std::vector<const double*> keys;
      for (int64_t j = 0; j <= last; ++j) {
        keys.push_back(&cache[static_cast<size_t>(where.slot(r, j) * 2 * kv + column)]);
        p.push_back(std::exp(scale * std::inner_product(keys.back(), keys.back() + s.head_size,
                                                        row + h * s.head_size, 0.0)));
      }
      const double sum = std::accumulate(p.begin(), p.end(), 0.0);
      for (int64_t c = 0; c < s.head_size; ++c) {
        double& y = want[static_cast<size_t>(r * q_width + h * s.head_size + c)];
        for (size_t j = 0; j < p.size(); ++j) y += p[j] / sum * keys[j][kv + c];
      }
    }
  }
  return want;
}

TEST_P(CachedAttention, MatchesReference) {
  // Two are long enough that a GPU splits the positions, and the last have heads enough for a warp each.
  for (const Shape s :
       {Shape{1, 1, 1, 3}, Shape{4, 4, 64, 40}, Shape{6, 2, 40, 70}, Shape{4, 1, 128, 300},
        Shape{2, 2, 33, 17}, Shape{2, 1, 256, 20}, Shape{2, 1, 64, 2100}, Shape{3, 3, 40, 777},
        Shape{264, 8, 64, 40}, Shape{264, 132, 16, 9}, Shape{264, 4, 40, 50}, Shape{24, 2, 64, 300},
        Shape{8, 2, 128, 1100}, Shape{3, 3, 64, 31}, Shape{16, 1, 128, 20},
        Shape{220, 220, 64, 40}}) {
    for (const Layout layout : {Layout::contiguous, Layout::slots, Layout::paged}) {
      SCOPED_TRACE(::testing::Message() << "max_positions " << s.max_positions << " layout "
                                        << static_cast<int>(layout));
      const Cache where(layout, s.max_positions);
      const bool paged = layout == Layout::paged;
      const std::vector<int32_t> finished{0, 0, 1, 0, 0};
      const int64_t q_width = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
      const Values qkv = random(kRows * (q_width + 2 * kv), 1),
                   old = random(where.count() * 2 * kv, 2);
      const Guarded in = array(qkv), cache = array(old), o = poison(kRows * q_width);
      const Guarded at = ints(where.positions), from = ints(where.starts),
                    table = ints(where.slots), pages = ints(where.page_table),
                    over = ints(finished);
      const float scale = 1.0f / std::sqrt(static_cast<float>(s.head_size));
      const CachedAttentionArgs args{
          .qkv = in.data(),
          .cache = cache.data(),
          .o = o.data(),
          .positions = at.as<int32_t>(),
          .starts = paged ? nullptr : from.as<int32_t>(),
          .slots = layout == Layout::slots ? table.as<int32_t>() : nullptr,
          .finished = over.as<int32_t>(),
          .page_table = paged ? pages.as<int32_t>() : nullptr,
          .page_size = paged ? kPage : 0,
          .page_table_stride = paged ? where.pages : 0,
          .rows = kRows,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_size = s.head_size,
          .max_positions = s.max_positions,
          .dtype = dtype(),
          .scale = scale,
          .level = cpu_level()};
      cached_attention(ctx(), args);
      Values cached = old;
      const Values want = reference(where, s, finished, qkv, static_cast<double>(scale), cached);
      // Scores of size |q||k| scale lose eps sqrt(head_size) of it, weights as much, sums eps
      // sqrt(positions); all times the largest value. The result is rounded once to dtype.
      double largest = 0;
      for (const double v : old) largest = std::max(largest, std::fabs(v));
      for (const double v : qkv) largest = std::max(largest, std::fabs(v));
      const double score = largest * largest * std::sqrt(static_cast<double>(s.head_size));
      const double slack =
          wide_unit() * largest * (4 + score + std::sqrt(static_cast<double>(s.max_positions))) +
          rounded_weights(largest);
      testing::expect_close("o", o.values(), want, unit(), Values(want.size(), slack));
      testing::expect_close("cache", cache.values(), cached, 0.0);
      const auto first = o.bytes();
      cached_attention(ctx(), args);
      EXPECT_EQ(o.bytes(), first);
    }
  }
}

// A memory is read as the history of a step whose token has been appended, by queries alone.
TEST_P(CachedAttention, ReadsAMemory) {
  for (const Shape s :
       {Shape{4, 4, 64, 40}, Shape{6, 2, 33, 17}, Shape{2, 1, 64, 2100}, Shape{264, 8, 64, 40}}) {
    const Cache where(Layout::contiguous, s.max_positions);
    const int64_t q_width = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
    const Values qkv = random(kRows * (q_width + 2 * kv), 1);
    const Guarded in = array(qkv), cache = array(random(where.count() * 2 * kv, 2)),
                  step = poison(kRows * q_width), o = poison(kRows * q_width),
                  at = ints(where.positions), from = ints(where.starts);
    CachedAttentionArgs args{.qkv = in.data(),
                             .cache = cache.data(),
                             .o = step.data(),
                             .positions = at.as<int32_t>(),
                             .starts = from.as<int32_t>(),
                             .rows = kRows,
                             .heads = s.heads,
                             .kv_heads = s.kv_heads,
                             .head_size = s.head_size,
                             .max_positions = s.max_positions,
                             .dtype = dtype(),
                             .scale = 0.125f,
                             .level = cpu_level()};
    cached_attention(ctx(), args);
    Values queries, want = step.values();
    std::vector<int32_t> lengths = where.positions;
    for (int32_t& n : lengths) ++n;
    lengths[3] = 0;
    std::fill_n(want.begin() + 3 * q_width, q_width, 0.0);
    for (int64_t r = 0; r < kRows; ++r) {
      const auto row = qkv.begin() + r * (q_width + 2 * kv);
      queries.insert(queries.end(), row, row + q_width);
    }
    const Guarded q = array(queries), all = ints(lengths);
    const auto before = cache.bytes();
    args.qkv = q.data(), args.o = o.data(), args.positions = nullptr;
    args.lengths = all.as<int32_t>();
    cached_attention(ctx(), args);
    testing::expect_close("o", o.values(), want, 0.0);
    EXPECT_EQ(cache.bytes(), before);
    args.positions = at.as<int32_t>();
    EXPECT_THROW(cached_attention(ctx(), args), Error);
  }
}

// A window and a cap and a bias of distances, each by itself and together, against plain sums.
void CachedAttention::masks_caps_and_biases(int64_t heads, int64_t size, int64_t most) {
  const int64_t width = heads * size;
  const auto scale = static_cast<float>(2 / std::sqrt(static_cast<double>(size)));
  const Cache where(Layout::contiguous, most);
  const Values qkv = random(kRows * 3 * width, 1), old = random(kRows * most * 2 * width, 2),
               biases = wide_random(heads * most, 3);
  for (const auto& [window, cap, biased] : {std::tuple<int64_t, float, bool>{7, 0.0f, false},
                                            {0, 1.5f, false},
                                            {0, 0.0f, true},
                                            {300, 2.0f, true},
                                            {1, 0.0f, false}}) {
    SCOPED_TRACE(::testing::Message() << "window " << window << " cap " << cap);
    const Guarded in = array(qkv), cache = array(old), o = poison(kRows * width),
                  at = ints(where.positions), from = ints(where.starts), bias = wide_array(biases);
    cached_attention(ctx(), {.qkv = in.data(),
                             .cache = cache.data(),
                             .o = o.data(),
                             .positions = at.as<int32_t>(),
                             .starts = from.as<int32_t>(),
                             .rows = kRows,
                             .heads = heads,
                             .kv_heads = heads,
                             .head_size = size,
                             .max_positions = most,
                             .dtype = dtype(),
                             .scale = scale,
                             .window = window,
                             .soft_cap = cap,
                             .bias = biased ? bias.data() : nullptr,
                             .bias_stride = most,
                             .level = cpu_level()});
    Values want(static_cast<size_t>(kRows * width));
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t last = where.positions[static_cast<size_t>(r)];
        double sum = 0;
        Values o_head(static_cast<size_t>(size));
        for (int64_t j = window > 0 ? std::max<int64_t>(0, last + 1 - window) : 0; j <= last; ++j) {
          const double* q = &qkv[static_cast<size_t>(r * 3 * width + h * size)];
          const double* k = j == last
                                ? q + width
                                : &old[static_cast<size_t>((r * most + j) * 2 * width + h * size)];
          double s = double{scale} * std::inner_product(q, q + size, k, 0.0);
          if (cap > 0) s = cap * std::tanh(s / cap);
          if (biased) s += biases[static_cast<size_t>(h * most + last - j)];
          sum += std::exp(s);
          for (int64_t c = 0; c < size; ++c)
            o_head[static_cast<size_t>(c)] += std::exp(s) * k[width + c];
        }
        for (int64_t c = 0; c < size; ++c)
          want[static_cast<size_t>(r * width + h * size + c)] =
              o_head[static_cast<size_t>(c)] / sum;
      }
    // As in MatchesReference, with values up to 5 and up to 64 channels; the bias adds to the scores.
    const double slack = wide_unit() * 5 * (4 + 25 * 8 + 25) + rounded_weights(5);
    testing::expect_close("o", o.values(), want, unit(), Values(want.size(), slack));
  }
}
TEST_P(CachedAttention, MasksCapsAndBiasesScores) {
  for (const int64_t size : {16, 64}) {
    masks_caps_and_biases(3, size, 600);
    masks_caps_and_biases(220, size, 40);  // a warp each
  }
}

// Without a workspace one block reads all positions: the answer is the same but for rounding.
TEST_P(CachedAttention, NeedsNoWorkspace) {
  const Shape s{2, 1, 64, 3000};
  const Cache where(Layout::contiguous, s.max_positions);
  const int64_t q_width = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
  const Values qkv = random(kRows * (q_width + 2 * kv), 1);
  const Guarded in = array(qkv), cache = array(random(where.count() * 2 * kv, 2));
  const Guarded split = poison(kRows * q_width), whole = poison(kRows * q_width);
  const Guarded at = ints(where.positions), from = ints(where.starts);
  CachedAttentionArgs args{.qkv = in.data(),
                           .cache = cache.data(),
                           .o = split.data(),
                           .positions = at.as<int32_t>(),
                           .starts = from.as<int32_t>(),
                           .rows = kRows,
                           .heads = s.heads,
                           .kv_heads = s.kv_heads,
                           .head_size = s.head_size,
                           .max_positions = s.max_positions,
                           .dtype = dtype(),
                           .scale = 0.125f};
  cached_attention(ctx(), args);
  Context bare = ctx();
  bare.workspace = nullptr, bare.workspace_bytes = 0;
  args.o = whole.data();
  cached_attention(bare, args);
  // Values lie in a few standard deviations: 8 bounds them and their weighted sum.
  const double slack = wide_unit() * 8 * (4 + 64 + std::sqrt(3000.0)) + rounded_weights(8);
  testing::expect_close("o", split.values(), whole.values(), 2 * unit(),
                        Values(static_cast<size_t>(kRows * q_width), slack));
}

// Beams of two sequences whose prompts lie in the slots of their first rows; the third row of each
// has finished. Prompts shorter than a split, and none at all, are among them.
TEST_P(CachedAttention, ReadsASharedPrefix) {
  for (const Shape s : {Shape{4, 2, 64, 1030}, Shape{2, 1, 33, 1024}, Shape{4, 1, 128, 90}})
    for (const int32_t prompt : {0, 61}) {
      SCOPED_TRACE(::testing::Message() << s.max_positions << " prompt " << prompt);
      constexpr int64_t kGroup = 5, kGroups = 2, kBeams = kGroup * kGroups;
      const int64_t q_width = s.heads * s.head_size, kv = s.kv_heads * s.head_size;
      const int64_t slot_count = kBeams * s.max_positions;
      std::vector<int32_t> starts, positions, slots, finished,
          shared{prompt, prompt == 0 ? 0 : static_cast<int32_t>(s.max_positions) - 20};
      for (int64_t r = 0; r < kBeams; ++r) {
        const int32_t own = shared[static_cast<size_t>(r / kGroup)];
        starts.push_back(static_cast<int32_t>(r * s.max_positions));
        positions.push_back(own + static_cast<int32_t>(r % kGroup * 3));
        finished.push_back(r % kGroup == 2);
        for (int64_t j = 0; j < s.max_positions; ++j)
          slots.push_back(
              static_cast<int32_t>((j < own ? r / kGroup * kGroup : r) * s.max_positions + j));
      }
      const Guarded in = array(random(kBeams * (q_width + 2 * kv), 1));
      const Values old = random(slot_count * 2 * kv, 2);
      const Guarded at = ints(positions), from = ints(starts), table = ints(slots),
                    over = ints(finished), prefix = ints(shared);
      CachedAttentionArgs args{.qkv = in.data(),
                               .positions = at.as<int32_t>(),
                               .starts = from.as<int32_t>(),
                               .slots = table.as<int32_t>(),
                               .finished = over.as<int32_t>(),
                               .rows = kBeams,
                               .heads = s.heads,
                               .kv_heads = s.kv_heads,
                               .head_size = s.head_size,
                               .max_positions = s.max_positions,
                               .dtype = dtype(),
                               .scale = 1.0f / std::sqrt(static_cast<float>(s.head_size))};
      // One row at a time is what MatchesReference checks; the groups must agree with it.
      const auto step = [&](const Guarded& cache, const Guarded& o) {
        args.cache = cache.data(), args.o = o.data();
        cached_attention(ctx(), args);
      };
      const Guarded alone_cache = array(old), alone = poison(kBeams * q_width);
      step(alone_cache, alone);
      args.shared_positions = prefix.as<int32_t>(), args.group_rows = kGroup;
      const Guarded cache = array(old), o = poison(kBeams * q_width),
                    again = poison(kBeams * q_width);
      step(cache, o);
      step(cache, again);
      const double slack =
          wide_unit() * 8 * (4 + 64 + std::sqrt(static_cast<double>(s.max_positions))) +
          rounded_weights(8);
      testing::expect_close("o", o.values(), alone.values(), 2 * unit(),
                            Values(static_cast<size_t>(kBeams * q_width), slack));
      testing::expect_close("cache", cache.values(), alone_cache.values(), 0.0);
      EXPECT_EQ(o.bytes(), again.bytes());
    }
}

template <class Change>
std::string paged_error(const Change& change) {
  const testing::TestContext t({});
  float x[4] = {};
  const int32_t i[4] = {};
  CachedAttentionArgs args{.qkv = x,
                           .cache = x,
                           .o = x,
                           .positions = i,
                           .page_table = i,
                           .page_size = 4,
                           .page_table_stride = 3,
                           .rows = 1,
                           .heads = 1,
                           .kv_heads = 1,
                           .head_size = 1,
                           .max_positions = 9};
  change(args, i);
  try {
    cached_attention(t.get(), args);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(CachedAttentionRules, RejectsBadPages) {
  using A = CachedAttentionArgs;
  const auto expect = [](auto change, const char* part) {
    const std::string text = paged_error(change);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  expect([](A& a, const int32_t*) { a.rows = 0; }, "no error");
  expect([](A& a, const int32_t* i) { a.starts = i; }, "page_table is set, and so is starts");
  expect([](A& a, const int32_t* i) { a.slots = i; }, "a paged cache needs neither");
  expect([](A& a, const int32_t*) { a.page_size = 0; }, "page_size is 0");
  expect([](A& a, const int32_t*) { a.page_table_stride = 2; },
         "page_table_stride is 2, but max_positions 9 take 3 pages of 4: pass at least 3");
  expect([](A& a, const int32_t*) { a.page_table = nullptr; }, "starts");
  expect([](A& a, const int32_t* i) { a.shared_positions = i, a.rows = 3, a.group_rows = 2; },
         "group_rows is 2 with shared_positions and 3 rows");
}

TEST(CachedAttentionRules, RejectsBadArguments) {
  const testing::TestContext t({});
  float x = 0;
  int32_t i = 0;
  CachedAttentionArgs args{.qkv = &x,
                           .cache = &x,
                           .o = &x,
                           .positions = &i,
                           .starts = &i,
                           .rows = 1,
                           .heads = 3,
                           .kv_heads = 2,
                           .head_size = 1,
                           .max_positions = 1};
  EXPECT_THROW(cached_attention(t.get(), args), Error);
  args.kv_heads = 1;
  args.qkv = nullptr;
  EXPECT_THROW(cached_attention(t.get(), args), Error);
  args.qkv = &x;
  args.dtype = DType::bf16;
  EXPECT_THROW(cached_attention(t.get(), args), Error);
}

}  // namespace
}  // namespace saturate::kernels
