// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv/conv2d.h"

#include "base/error.h"
#include "kernels/testing/targets.h"

namespace saturate::kernels {
namespace {

using testing::Values;

struct Shape {
  const char* name;
  int64_t batch, height, width, channels, filters, filter_height, filter_width;
  Conv2dAxis vertical = {}, horizontal = {};
  bool bias = false;
};

constexpr Shape kShapes[] = {
    {"one", 1, 1, 1, 1, 1, 1, 1},
    {"pointwise", 2, 5, 7, 16, 24, 1, 1, {}, {}, true},
    {"same", 2, 9, 8, 16, 32, 3, 3, {1, 1, 1}, {1, 1, 1}, true},
    {"odd", 3, 7, 6, 5, 11, 3, 2, {1, 1, 1}, {1, 0, 1}, true},
    {"strided", 2, 11, 10, 8, 16, 3, 3, {2, 1, 1}, {3, 1, 1}},
    {"dilated", 1, 13, 12, 24, 8, 3, 3, {1, 2, 2}, {1, 3, 3}},
    {"all", 2, 15, 14, 12, 20, 5, 3, {2, 3, 2}, {3, 2, 1}, true},
    {"wide_padding", 1, 3, 2, 8, 8, 2, 2, {2, 4, 1}, {1, 3, 2}},
    {"deep", 8, 16, 16, 64, 72, 3, 3, {1, 1, 1}, {1, 1, 1}, true},
};

struct Reference {
  Values y, y_size, d_x, d_x_size, d_w, d_w_size;  // size: sum of the terms' magnitudes
};

Reference reference(const Conv2dArgs& z, const Values& x, const Values& w, const Values& bias,
                    const Values& d_y) {
  Reference r;
  const int64_t rows = z.output_height(), cols = z.output_width();
  r.y.assign(static_cast<size_t>(z.batch * rows * cols * z.filters), 0);
  r.y_size = r.y;
  r.d_x.assign(x.size(), 0);
  r.d_x_size = r.d_x;
  r.d_w.assign(w.size(), 0);
  r.d_w_size = r.d_w;
  for (int64_t b = 0; b < z.batch; ++b)
    for (int64_t p = 0; p < rows; ++p)
      for (int64_t q = 0; q < cols; ++q)
        for (int64_t f = 0; f < z.filters; ++f) {
          const auto o = static_cast<size_t>(((b * rows + p) * cols + q) * z.filters + f);
          if (!bias.empty()) {
            r.y[o] = bias[static_cast<size_t>(f)];
            r.y_size[o] = std::fabs(r.y[o]);
          }
          for (int64_t i = 0; i < z.filter_height; ++i)
            for (int64_t j = 0; j < z.filter_width; ++j) {
              const int64_t h =
                  p * z.vertical.stride - z.vertical.padding + i * z.vertical.dilation;
              const int64_t v =
                  q * z.horizontal.stride - z.horizontal.padding + j * z.horizontal.dilation;
              if (h < 0 || v < 0 || h >= z.height || v >= z.width) continue;
              for (int64_t c = 0; c < z.channels; ++c) {
                const auto at =
                    static_cast<size_t>(((b * z.height + h) * z.width + v) * z.channels + c);
                const auto weight = static_cast<size_t>(
                    ((f * z.filter_height + i) * z.filter_width + j) * z.channels + c);
                r.y[o] += x[at] * w[weight];
                r.y_size[o] += std::fabs(x[at] * w[weight]);
                r.d_x[at] += d_y[o] * w[weight];
                r.d_x_size[at] += std::fabs(d_y[o] * w[weight]);
                r.d_w[weight] += d_y[o] * x[at];
                r.d_w_size[weight] += std::fabs(d_y[o] * x[at]);
              }
            }
        }
  return r;
}

class Conv2d : public testing::OnTarget {
 protected:
  // Rounding of each of n additions grows like sqrt(n); the result rounds once to dtype.
  Values bound(const Values& size, int64_t n) const {
    Values b = size;
    for (double& v : b) v *= wide_unit() * (std::sqrt(static_cast<double>(n)) + 3);
    return b;
  }
};

TEST_P(Conv2d, MatchesDirectLoopsInDoublePrecision) {
  for (const Shape& s : kShapes) {
    SCOPED_TRACE(s.name);
    Conv2dArgs z{.batch = s.batch,
                 .height = s.height,
                 .width = s.width,
                 .channels = s.channels,
                 .filters = s.filters,
                 .filter_height = s.filter_height,
                 .filter_width = s.filter_width,
                 .vertical = s.vertical,
                 .horizontal = s.horizontal,
                 .dtype = dtype()};
    const int64_t taps = s.filter_height * s.filter_width;
    const int64_t pixels = s.batch * z.output_height() * z.output_width();
    const auto x = array(random(s.batch * s.height * s.width * s.channels, 1));
    const auto w = array(random(s.filters * taps * s.channels, 2));
    const auto bias = array(random(s.filters, 3));
    const auto d_y = array(random(pixels * s.filters, 4));
    const auto y = poison(pixels * s.filters), d_x = poison(x.count()), d_w = poison(w.count());
    z.x = x.data(), z.w = w.data(), z.y = y.data();
    z.bias = s.bias ? bias.data() : nullptr;
    const Reference want =
        reference(z, x.values(), w.values(), s.bias ? bias.values() : Values{}, d_y.values());
    const Conv2dBackwardArgs back{z, d_y.data(), d_x.data(), d_w.data()};
    conv2d_forward(ctx(), z);
    conv2d_backward(ctx(), back);
    const double rounding = 1.01 * unit();
    testing::expect_close("y", y.values(), want.y, rounding, bound(want.y_size, taps * s.channels));
    testing::expect_close("d_x", d_x.values(), want.d_x, rounding,
                          bound(want.d_x_size, taps * s.filters));
    testing::expect_close("d_w", d_w.values(), want.d_w, rounding, bound(want.d_w_size, pixels));
    const auto first = y.bytes(), first_x = d_x.bytes(), first_w = d_w.bytes();
    conv2d_forward(ctx(), z);
    conv2d_backward(ctx(), back);
    EXPECT_EQ(first, y.bytes()) << "two runs differ";
    EXPECT_EQ(first_x, d_x.bytes()) << "two runs differ";
    EXPECT_EQ(first_w, d_w.bytes()) << "two runs differ";
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, Conv2d, testing::all_targets(), testing::target_name);

std::string message_of(const Conv2dArgs& args) {
  try {
    conv2d_forward(Context{}, args);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

TEST(Conv2dRules, SaysWhatIsWrong) {
  float v[64] = {};
  const Conv2dArgs ok{.x = v,
                      .w = v + 16,
                      .y = v + 32,
                      .batch = 1,
                      .height = 4,
                      .width = 4,
                      .channels = 1,
                      .filters = 1};
  EXPECT_EQ(message_of(ok), "no error");
  Conv2dArgs bad = ok;
  bad.filter_height = 5;
  EXPECT_EQ(message_of(bad),
            "[conv2d_forward] height: a filter that reaches over 5 elements does not fit into 4 "
            "with 0 of padding on either side");
  bad = ok;
  bad.horizontal.stride = 0;
  EXPECT_EQ(message_of(bad),
            "[conv2d_forward] width: stride 0, padding 0, dilation 1 must be at least 1, 0, 1");
  bad = ok;
  bad.filters = 0;
  EXPECT_EQ(message_of(bad),
            "[conv2d_forward] batch 1, channels 1, filters 0 must be at least 0, 1, 1");
  bad = ok;
  bad.w = nullptr;
  EXPECT_EQ(message_of(bad), "[conv2d_forward] x, w or y is null");
  bad = ok;
  bad.dtype = DType::bf16;
  EXPECT_NE(message_of(bad).find("the CPU convolves f32 and f64 only"), std::string::npos);
}

}  // namespace
}  // namespace saturate::kernels
