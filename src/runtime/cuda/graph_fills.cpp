// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/graph_fills.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/cuda/check.h"

namespace saturate::cuda {
namespace {

constexpr size_t kMostBytes = size_t{64} << 10;

struct Fill {
  char* dst;
  int value;
  uint32_t bytes;
};

// Nothing where the node is no fill of few bytes, all alike.
std::optional<Fill> small_fill(cudaGraphNode_t node) {
  cudaGraphNodeType type;
  SAT_CUDA(cudaGraphNodeGetType(node, &type));
  if (type != cudaGraphNodeTypeMemset) return {};
  cudaMemsetParams p{};
  SAT_CUDA(cudaGraphMemsetNodeGetParams(node, &p));
  const size_t bytes = p.width * p.elementSize;
  const bool alike = p.value == 0 || p.elementSize == 1;
  if (p.height > 1 || !alike || bytes == 0 || bytes > kMostBytes) return {};
  return Fill{static_cast<char*>(p.dst), static_cast<int>(p.value), static_cast<uint32_t>(bytes)};
}

cudaGraphNode_t add_kernel(cudaGraph_t graph, Fill fill) {
  void* args[] = {&fill.dst, &fill.value, &fill.bytes};
  cudaKernelNodeParams params{};
  params.func = fill_kernel();
  params.gridDim = dim3(1);
  params.blockDim = dim3(std::clamp<uint32_t>((fill.bytes / 4 + 31) / 32 * 32, 32, 1024));
  params.kernelParams = args;
  cudaGraphNode_t node = nullptr;
  SAT_CUDA(cudaGraphAddKernelNode(&node, graph, nullptr, 0, &params));
  return node;
}

}  // namespace

void fills_by_kernels(cudaGraph_t graph) {
  size_t count = 0;
  SAT_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  SAT_CUDA(cudaGraphGetNodes(graph, nodes.data(), &count));
  std::vector<cudaGraphNode_t> around;
  std::vector<cudaGraphEdgeData> data;
  for (const cudaGraphNode_t node : nodes) {
    const std::optional<Fill> fill = small_fill(node);
    if (!fill) continue;
    const cudaGraphNode_t kernel = add_kernel(graph, *fill);
    // Edges of a fill are whole ones: it neither begins before what it follows has ended, nor lets
    // others begin before it has.
    const auto neighbours = [&](auto* list) {
      size_t n = 0;
      SAT_CUDA(list(node, nullptr, nullptr, &n));
      around.resize(n);
      data.resize(n);
      if (n > 0) SAT_CUDA(list(node, around.data(), data.data(), &n));
    };
    neighbours(&cudaGraphNodeGetDependencies);
    for (const cudaGraphNode_t from : around)
      SAT_CUDA(cudaGraphAddDependencies(graph, &from, &kernel, nullptr, 1));
    neighbours(&cudaGraphNodeGetDependentNodes);
    for (const cudaGraphNode_t to : around)
      SAT_CUDA(cudaGraphAddDependencies(graph, &kernel, &to, nullptr, 1));
    SAT_CUDA(cudaGraphDestroyNode(node));
  }
}

}  // namespace saturate::cuda
