// SPDX-License-Identifier: Apache-2.0
// The entries of the table of matrix products in its file (tuned_file.h).

#include "kernels/gemm/tune/table.h"
#include "kernels/tune/tuned_file.h"

namespace saturate::kernels {
namespace {

constexpr const char* kKind = "gemm";

std::string entry_text(const GemmKey& k, const GemmChoice& c) {
  const Json json = {{"type", name_of(k.ab_type)},
                     {"out", name_of(k.d_type)},
                     {"layout", std::string(k.ta == Transpose::yes ? "T" : "N") +
                                    (k.tb == Transpose::yes ? "T" : "N")},
                     {"tf32", k.tf32},
                     {"accumulate", k.accumulates},
                     {"bias", k.bias},
                     {"aligned", k.aligned},
                     {"shape", Json::Array{k.m, k.n, k.k}},
                     {"impl", c.impl},
                     {"config", c.config},
                     {"ms", c.ms},
                     {"default_ms", c.default_ms}};
  return json.dump();
}

void read_entry(TunedEntry& f, GemmTable& table) {
  constexpr std::string_view kLayouts[] = {"NN", "NT", "TN", "TT"};
  GemmKey k;
  k.ab_type = f.type("type");
  k.d_type = f.type("out");
  const size_t layout = f.choice("layout", kLayouts);
  k.ta = layout >= 2 ? Transpose::yes : Transpose::no;
  k.tb = layout % 2 == 1 ? Transpose::yes : Transpose::no;
  k.tf32 = f.boolean("tf32");
  k.accumulates = f.boolean("accumulate");
  k.bias = f.boolean("bias");
  k.aligned = f.boolean("aligned");
  const std::vector<int64_t> shape = f.whole_numbers("shape", 3, 1, "three whole numbers from 1");
  k.m = shape[0], k.n = shape[1], k.k = shape[2];
  table.set(k,
            {f.text("impl"), f.text("config"), f.not_negative("ms"), f.not_negative("default_ms")});
}

}  // namespace

std::string gemm_table_path(const std::string& folder, const TuneMachine& machine) {
  return tuned_file_path(folder, kKind, machine);
}

std::string to_json(const TuneMachine& machine, const GemmTable& table) {
  std::vector<std::string> entries;
  for (const auto& [key, choice] : table.entries()) entries.push_back(entry_text(key, choice));
  return tuned_file_text(kKind, machine, entries);
}

ReadGemmTable read_gemm_table(const std::string& path, const TuneMachine& machine) {
  ReadGemmTable result;
  result.problem = read_tuned_file(path, kKind, machine, result.exists,
                                   [&](TunedEntry& e) { read_entry(e, result.table); });
  if (!result.problem.empty()) result.table = {};
  return result;
}

void merge_gemm_table(const std::string& path, const TuneMachine& machine, const GemmTable& found) {
  ReadGemmTable now;
  update_tuned_file(
      path,
      [&] {
        now = read_gemm_table(path, machine);
        return now.problem;
      },
      [&] {
        for (const auto& [key, choice] : found.entries()) now.table.set(key, choice);
        return to_json(machine, now.table);
      });
}

}  // namespace saturate::kernels
