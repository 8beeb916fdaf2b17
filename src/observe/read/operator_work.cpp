// SPDX-License-Identifier: Apache-2.0
#include "observe/read/operator_work.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "observe/read/json_tokens.h"

namespace saturate::observe {
namespace {

using Shape = std::vector<int64_t>;
using Tensors = std::vector<Shape>;  // of one argument: several for a list of tensors

enum class Rule : uint8_t {
  product,      // [m, k] x [k, n], arguments `first` and `first` + 1; batched with three sizes
  linear,       // [..., k] x [n, k]
  convolution,  // arguments of stride, padding and dilation follow `first`
  convolution_backward,
  attention,       // (batch, heads, length, width)
  attention_rows,  // (batch, length, heads, width)
  map,             // reads all arguments, writes as much as the largest
  in_place,        // the same, writes the first argument
  write,           // only writes the first
  reduce,          // only reads
  read_one_write_other,
  rows,  // reads and writes a row of the first for each number of the second
};
struct Known {
  Rule rule;
  int first = 0;    // argument
  int causal = -1;  // argument that says whether attention is causal
  bool backward = false;
};

const Known* known(std::string_view name) {
  static const std::unordered_map<std::string_view, Known> kTable = {
      {"aten::mm", {Rule::product}},
      {"aten::addmm", {Rule::product, 1}},
      {"aten::bmm", {Rule::product}},
      {"aten::baddbmm", {Rule::product, 1}},
      {"aten::_scaled_mm", {Rule::product}},
      {"aten::_addmm_activation", {Rule::product, 1}},
      {"aten::linear", {Rule::linear}},
      {"aten::convolution", {Rule::convolution, 3}},
      {"aten::_convolution", {Rule::convolution, 3}},
      {"aten::cudnn_convolution", {Rule::convolution, 2}},
      {"aten::convolution_backward", {Rule::convolution_backward}},
      {"aten::_scaled_dot_product_flash_attention", {Rule::attention, 0, 4}},
      {"aten::_scaled_dot_product_efficient_attention", {Rule::attention, 0, 6}},
      {"aten::_scaled_dot_product_cudnn_attention", {Rule::attention, 0, 6}},
      {"aten::_cudnn_attention_forward", {Rule::attention, 0, 10}},
      {"aten::_cudnn_attention_backward", {Rule::attention, 1, 14, true}},
      {"aten::_flash_attention_forward", {Rule::attention_rows, 0, 8}},
      {"aten::_efficient_attention_forward", {Rule::attention_rows, 0, 9}},
      {"aten::_scaled_dot_product_flash_attention_backward", {Rule::attention, 1, 11, true}},
      {"aten::_scaled_dot_product_efficient_attention_backward", {Rule::attention, 1, 11, true}},
      {"aten::_scaled_dot_product_cudnn_attention_backward", {Rule::attention, 1, 14, true}},
      {"aten::_flash_attention_backward", {Rule::attention_rows, 1, 11, true}},
      {"aten::_efficient_attention_backward", {Rule::attention_rows, 1, 14, true}},
      {"aten::copy_", {Rule::read_one_write_other}},
      {"aten::fill_", {Rule::write}},
      {"aten::zero_", {Rule::write}},
      {"aten::sum", {Rule::reduce}},
      {"aten::mean", {Rule::reduce}},
      {"aten::embedding", {Rule::rows}},
      {"aten::index_select", {Rule::rows}},
  };
  constexpr std::string_view kPrefix = "aten::";
  static const std::unordered_map<std::string_view, Known> kMaps = [] {  // without the prefix
    std::unordered_map<std::string_view, Known> table;
    const auto add = [&table](std::string_view names, Rule rule) {
      while (!names.empty()) {
        const size_t end = std::min(names.find(' '), names.size());
        table.emplace(names.substr(0, end), Known{rule});
        names.remove_prefix(std::min(end + 1, names.size()));
      }
    };
    add("add sub mul div neg exp log sqrt rsqrt pow tanh sigmoid relu gelu silu clamp clamp_min "
        "where abs "
        "bitwise_and eq masked_fill _softmax _log_softmax _softmax_backward_data "
        "_log_softmax_backward_data gelu_backward silu_backward threshold_backward tanh_backward "
        "sigmoid_backward native_layer_norm native_layer_norm_backward _fused_rms_norm "
        "cudnn_batch_norm "
        "native_batch_norm cudnn_batch_norm_backward native_batch_norm_backward native_dropout",
        Rule::map);
    add("add_ sub_ mul_ div_ relu_ addcmul_ addcdiv_ lerp_ clamp_min_ masked_fill_ sqrt_",
        Rule::in_place);
    return table;
  }();
  if (const auto at = kTable.find(name); at != kTable.end()) return &at->second;
  if (!name.starts_with(kPrefix)) return nullptr;
  name.remove_prefix(kPrefix.size());
  if (const auto at = kMaps.find(name); at != kMaps.end()) return &at->second;
  return nullptr;
}

double elements(const Shape& shape) {
  double n = 1;
  for (const int64_t size : shape) n *= static_cast<double>(size);
  return n;
}

// Arguments without sizes (numbers, flags, nothing) have no tensors.
std::vector<Tensors> read_dims(std::string_view text) {
  std::vector<Tensors> arguments;
  JsonTokens json(text, 0, "Input Dims");
  if (json.next() != JsonToken::begin_array) return {};
  const auto read_shape = [&](Shape& shape, Tensors* nested) {
    for (JsonToken t = json.next(); t != JsonToken::end_array; t = json.next()) {
      int64_t size = 0;
      if (t == JsonToken::number)
        std::from_chars(json.text().data(), json.text().data() + json.text().size(), size);
      if (t == JsonToken::number) shape.push_back(size);
      if (t == JsonToken::begin_array && nested != nullptr) return true;
      json.skip(t);
    }
    return false;
  };
  for (JsonToken t = json.next(); t != JsonToken::end_array; t = json.next()) {
    Tensors& tensors = arguments.emplace_back();
    if (t != JsonToken::begin_array) {
      json.skip(t);
      continue;
    }
    Shape plain;
    while (read_shape(plain, &tensors)) read_shape(tensors.emplace_back(), nullptr);
    if (!plain.empty()) tensors.push_back(std::move(plain));
  }
  return arguments;
}

std::vector<std::string> read_texts(std::string_view text) {
  std::vector<std::string> texts;
  if (text.empty()) return texts;
  JsonTokens json(text, 0, "inputs");
  if (json.next() != JsonToken::begin_array) return {};
  for (JsonToken t = json.next(); t != JsonToken::end_array; t = json.next()) {
    texts.emplace_back(t == JsonToken::string ? json.text() : std::string_view());
    json.skip(t);
  }
  return texts;
}

// "[1, 2]"
std::vector<int64_t> read_numbers(std::string_view text) {
  std::vector<int64_t> numbers;
  const char *at = text.data(), *end = at + text.size();
  while (at != end) {
    int64_t n = 0;
    const auto [after, error] = std::from_chars(at, end, n);
    if (error == std::errc{}) numbers.push_back(n);
    at = error == std::errc{} ? after : at + 1;
  }
  return numbers;
}

struct Type {
  double bytes = 0;
  Precision precision = Precision::unknown;
};

Type type_of(std::string_view name) {
  if (name == "float") return {4, Precision::f32};
  if (name == "c10::BFloat16" || name == "c10::Half") return {2, Precision::f16};
  if (name == "double") return {8, Precision::f64};
  if (name.starts_with("c10::Float8")) return {1, Precision::f8};
  if (name == "long" || name == "long int" || name == "unsigned long") return {8};
  if (name == "int" || name == "unsigned int") return {4};
  if (name == "short" || name == "short int") return {2};
  if (name == "bool" || name == "unsigned char" || name == "signed char" || name == "char")
    return {1};
  if (name == "c10::complex<float>") return {8};
  return {};
}

class Reckoner {
 public:
  Reckoner(const Known& known, std::string_view dims, std::string_view types,
           std::string_view values)
      : known_(known), tensors_(read_dims(dims)), values_(read_texts(values)) {
    for (const std::string& name : read_texts(types)) types_.push_back(type_of(name));
    types_.resize(tensors_.size());
  }

  std::optional<OperatorWork> work() {
    const size_t a = static_cast<size_t>(known_.first);
    switch (known_.rule) {
      case Rule::product:
        return product(a);
      case Rule::linear:
        return linear();
      case Rule::convolution:
        return convolution();
      case Rule::convolution_backward:
        return convolution_backward();
      case Rule::attention:
        return attention(a, 1, 2);
      case Rule::attention_rows:
        return attention(a, 2, 1);
      case Rule::map:
      case Rule::in_place:
        return map();
      case Rule::write:
        return moved(0, bytes(0));
      case Rule::reduce:
        return moved(count(0), bytes(0));
      case Rule::read_one_write_other:
        return moved(0, bytes(0) + bytes(1));
      case Rule::rows: {
        if (!one(0) || tensors_.size() < 2) return {};
        const double width = elements(shape(0)) / static_cast<double>(shape(0)[0]);
        const double rows = count(1) > 0 ? count(1) : count(2);
        return moved(0, 2 * rows * width * types_[0].bytes);
      }
    }
    return {};
  }

 private:
  bool one(size_t i) const { return i < tensors_.size() && tensors_[i].size() == 1; }
  const Shape& shape(size_t i) const { return tensors_[i][0]; }
  double count(size_t i) const {
    double n = 0;
    if (i < tensors_.size())
      for (const Shape& s : tensors_[i]) n += elements(s);
    return n;
  }
  double bytes(size_t i) const { return i < tensors_.size() ? count(i) * types_[i].bytes : 0; }
  double all_bytes(size_t from, size_t end) const {
    double sum = 0;
    for (size_t i = from; i < std::min(end, tensors_.size()); ++i) sum += bytes(i);
    return sum;
  }
  std::optional<OperatorWork> done(double flops, double least_bytes, Precision precision) const {
    if (!(flops >= 0) || !(least_bytes > 0) || !(flops < 1e24) || !(least_bytes < 1e18)) return {};
    OperatorWork w;
    w.flops = flops;
    w.bytes = least_bytes;
    w.precision = precision;
    return w;
  }
  std::optional<OperatorWork> moved(double flops, double least_bytes) const {
    return done(flops, least_bytes, Precision::unknown);
  }

  std::optional<OperatorWork> product(size_t a) const {
    if (!one(a) || !one(a + 1)) return {};
    const Shape &x = shape(a), &y = shape(a + 1);
    const size_t n = x.size();
    if (n != y.size() || n < 2 || n > 3 || x[n - 1] != y[n - 2] || x[0] < 0) return {};
    const double out = elements(x) / static_cast<double>(std::max<int64_t>(1, x[n - 1])) *
                       static_cast<double>(y[n - 1]);
    // An argument before them is added once; the result of eight-bit products has two bytes.
    return done(2 * elements(x) * static_cast<double>(y[n - 1]),
                all_bytes(0, a + 2) + out * std::max(2.0, types_[a].bytes), types_[a].precision);
  }
  std::optional<OperatorWork> linear() const {
    if (!one(0) || !one(1) || shape(1).size() != 2 || shape(0).empty() ||
        shape(0).back() != shape(1)[1])
      return {};
    const double rows = elements(shape(0)) / static_cast<double>(std::max<int64_t>(1, shape(1)[1]));
    return done(2 * rows * elements(shape(1)),
                all_bytes(0, 3) + rows * static_cast<double>(shape(1)[0]) * types_[0].bytes,
                types_[0].precision);
  }
  std::optional<OperatorWork> convolution() const {
    const auto list = [&](size_t i, size_t n) {
      std::vector<int64_t> v = i < values_.size() ? read_numbers(values_[i]) : Shape{};
      if (v.size() == 1) v.resize(n, v[0]);
      return v;
    };
    if (!one(0) || !one(1)) return {};
    const Shape &x = shape(0), &w = shape(1);
    if (x.size() < 3 || x.size() != w.size()) return {};
    const auto at = static_cast<size_t>(known_.first);
    const bool cudnn = known_.first == 2;  // which has the padding first
    const size_t space = x.size() - 2;
    const Shape stride = list(cudnn ? at + 1 : at, space),
                padding = list(cudnn ? at : at + 1, space), dilation = list(at + 2, space);
    if (stride.size() != space || padding.size() != space || dilation.size() != space) return {};
    if (!cudnn && (values_.size() <= 6 || values_[6] != "False")) return {};  // transposed
    double out = static_cast<double>(x[0]) * static_cast<double>(w[0]);
    for (size_t i = 0; i < space; ++i) {
      const int64_t reach = dilation[i] * (w[i + 2] - 1) + 1;
      const int64_t length = x[i + 2] + 2 * padding[i] - reach;
      if (stride[i] <= 0 || length < 0) return {};
      out *= static_cast<double>(length / stride[i] + 1);
    }
    return done(2 * out * elements(w) / static_cast<double>(std::max<int64_t>(1, w[0])),
                bytes(0) + bytes(1) + out * types_[0].bytes, types_[0].precision);
  }
  std::optional<OperatorWork> convolution_backward() const {
    if (!one(0) || !one(1) || !one(2) || shape(2).empty()) return {};
    // The gradients of input and weight, as the mask asks for.
    const double one_pass = 2 * elements(shape(0)) * elements(shape(2)) /
                            static_cast<double>(std::max<int64_t>(1, shape(2)[0]));
    int passes = 2;
    if (values_.size() > 10 && values_[10].starts_with("[False")) passes = 1;
    return done(passes * one_pass, bytes(0) + 2 * bytes(2) + passes * bytes(1),
                types_[0].precision);
  }
  std::optional<OperatorWork> attention(size_t q, size_t heads, size_t length) const {
    if (!one(q) || !one(q + 1) || !one(q + 2)) return {};
    const Shape &query = shape(q), &key = shape(q + 1), &value = shape(q + 2);
    if (query.size() != 4 || key.size() != 4 || value.size() != 4) return {};
    const auto causal = static_cast<size_t>(known_.causal);
    if (causal >= values_.size()) return {};
    const std::string& mask = values_[causal];
    if (mask.empty()) return {};
    const bool half = mask == "True" || mask == "1" || mask == "2";
    const double scores = static_cast<double>(query[0]) * static_cast<double>(query[heads]) *
                          static_cast<double>(query[length]) * static_cast<double>(key[length]);
    const double forward = 2 * scores * static_cast<double>(query[3] + value[3]) * (half ? 0.5 : 1);
    // Five products instead of two.
    const double moved = bytes(q) + bytes(q + 1) + bytes(q + 2);
    return done(known_.backward ? 2.5 * forward : forward,
                known_.backward ? 2 * moved + 2 * bytes(q) : moved + bytes(q), types_[q].precision);
  }
  std::optional<OperatorWork> map() const {
    double most = 0, out = 0;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      most = std::max(most, count(i));
      out = std::max(out, bytes(i));
    }
    if (known_.rule == Rule::in_place) out = bytes(0);
    return moved(most, all_bytes(0, tensors_.size()) + out);
  }

  const Known& known_;
  std::vector<Tensors> tensors_;
  std::vector<Type> types_;
  std::vector<std::string> values_;
};

}  // namespace

bool has_operator_work(std::string_view name) { return known(name) != nullptr; }

std::optional<OperatorWork> operator_work(std::string_view name, std::string_view dims,
                                          std::string_view types, std::string_view values) {
  const Known* k = known(name);
  if (k == nullptr || dims.empty() || types.empty()) return {};
  try {
    return Reckoner(*k, dims, types, values).work();
  } catch (const Error&) {  // no lists of sizes
    return {};
  }
}

}  // namespace saturate::observe
