// SPDX-License-Identifier: Apache-2.0
// What the products with packed weights reach on one thread, beside fp32 in turns: the clock of a shared
// machine changes between runs more than versions do, so their ratio is what LADDER.md compares.
//   saturate_packed_bench [TURNS]     prints a line of JSON a shape
#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/gemm/packed/packed_linear.h"
#include "runtime/memory.h"
#include "runtime/parallel_for.h"

namespace saturate::kernels {
namespace {

struct Shape {
  int64_t rows, n, k;
};
constexpr Shape kShapes[] = {{64, 1536, 512}, {64, 2048, 512}, {64, 512, 2048}, {64, 10000, 512},
                             {16, 2048, 512}, {4, 2048, 512},  {1, 2048, 512}};
constexpr double kWorth = 3e8;  // operations that are timed together

// Of this thread's processor, which others' work takes no part of.
double seconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

std::vector<float> numbers(int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<size_t>(count));
  for (float& one : v) one = normal(random);
  return v;
}

class Product {
 public:
  Product(PackedType type, const Shape& s, const std::vector<float>& w, const std::vector<float>& x)
      : weights_(type, w.data(), s.n, s.k), y_(static_cast<size_t>(s.rows * s.n)) {
    args_.x = x.data(), args_.w = weights_.view(), args_.y = y_.data();
    args_.rows = s.rows, args_.ldx = s.k, args_.ldy = s.n, args_.level = cpu_level();
    plan_ = plan_packed_linear({}, args_);
    scratch_ = Buffer({}, std::max<size_t>(1, plan_.workspace_bytes));
  }
  void run(int64_t times) const {
    Context ctx;
    ctx.workspace = scratch_.data(), ctx.workspace_bytes = scratch_.bytes();
    for (int64_t i = 0; i < times; ++i) plan_.run(ctx, args_);
  }

 private:
  PackedWeights weights_;
  std::vector<float> y_;
  PackedLinearArgs args_;
  Plan<PackedLinearArgs> plan_;
  Buffer scratch_;
};

void measure(const Shape& s, int turns) {
  const double operations = 2.0 * static_cast<double>(s.rows) * static_cast<double>(s.n * s.k);
  const auto times = static_cast<int64_t>(std::max(1.0, kWorth / operations));
  const std::vector<float> w = numbers(s.n * s.k, 1), x = numbers(s.rows * s.k, 2);
  const Product fp32(PackedType::f32, s, w, x), int8(PackedType::s8, s, w, x);
  const std::array products{&fp32, &int8};
  std::array best{1e9, 1e9};
  for (int turn = 0; turn <= turns; ++turn)
    for (size_t i = 0; i < products.size(); ++i) {
      const double begin = seconds();
      products[i]->run(times);
      const double took = (seconds() - begin) / static_cast<double>(times);
      if (turn > 0) best[i] = std::min(best[i], took);  // the first fills caches
    }
  fmt::print(
      "{{\"what\":\"packed product\",\"rows\":{},\"n\":{},\"k\":{},\"fp32_gflops\":{:.1f},"
      "\"int8_gops\":{:.1f},\"int8_of_fp32\":{:.2f}}}\n",
      s.rows, s.n, s.k, operations / best[0] / 1e9, operations / best[1] / 1e9, best[0] / best[1]);
}

}  // namespace
}  // namespace saturate::kernels

int main(int arguments, char** argument) {
  using namespace saturate;
  const int turns = arguments > 1 ? std::atoi(argument[1]) : 9;
  if (turns < 1) {
    fmt::print(stderr, "saturate_packed_bench: TURNS is {}; give a number from 1 on\n",
               argument[1]);
    return 2;
  }
  set_cpu_threads(1);
  for (const kernels::Shape& s : kernels::kShapes) kernels::measure(s, turns);
}
