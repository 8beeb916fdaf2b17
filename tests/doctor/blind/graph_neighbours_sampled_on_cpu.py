# SPDX-License-Identifier: Apache-2.0
"""github.com/dmlc/dgl PR#3674

Training a graph network: nearly all of an epoch goes into choosing neighbours and collecting their features.

Cause: two hops of neighbours are drawn and their feature rows indexed on the CPU, then copied; the GPU waits
Line: graph_neighbours_sampled_on_cpu.py:sample (host side)
Remedy: graph and features on the GPU, the same sampling there
"""
import numpy
import torch

import blind
import training


class Graph:
    """Neighbour lists in CSR form and one feature row a node."""

    def __init__(self, nodes, width):
        rng = numpy.random.default_rng(6)
        degrees = rng.integers(4, 16, size=nodes)
        self.begin = torch.from_numpy(numpy.concatenate([[0], numpy.cumsum(degrees)]))
        self.neighbours = torch.from_numpy(rng.integers(nodes, size=int(self.begin[-1])))
        self.features = torch.from_numpy(rng.random((nodes, width), dtype=numpy.float32))

    def to(self, device):
        self.begin, self.neighbours = self.begin.to(device), self.neighbours.to(device)
        self.features = self.features.to(device)
        return self

    def draw(self, nodes, fan_out):
        """`fan_out` neighbours of each node, drawn with replacement."""
        first = self.begin[nodes]
        degree = self.begin[nodes + 1] - first
        chance = torch.rand(len(nodes), fan_out, device=nodes.device)
        return self.neighbours[first[:, None] + (chance * degree[:, None]).long()].flatten()

    def sample(self, seeds, fan_outs):
        hop_1 = self.draw(seeds, fan_outs[0])
        hop_2 = self.draw(hop_1, fan_outs[1])
        return self.features[hop_1], self.features[hop_2]


class Sage(torch.nn.Module):
    def __init__(self, features, width, layers):
        super().__init__()
        self.own, self.other = torch.nn.Linear(features, width), torch.nn.Linear(features, width)
        self.body = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, hop_1, hop_2, fan_outs):
        x = torch.relu(self.own(hop_1) + self.other(hop_2.view(len(hop_1), fan_outs[1], -1).mean(1)))
        for layer in self.body:
            x = torch.relu(layer(x))
        return x.view(-1, fan_outs[0], x.shape[1]).mean(1)


def main():
    loop = blind.Loop("graph_neighbours_sampled_on_cpu", "input", steps=200)
    device = loop.device()
    nodes, width, seeds = loop.size(1_000_000, 2000), loop.size(128, 16), loop.size(1024, 16)
    fan_outs = loop.size((25, 10), (3, 2))
    layers = loop.size(48 if loop.variant == "healthy" else 12, 2)
    torch.manual_seed(0)
    graph = Graph(nodes, width)
    home = torch.device("cpu") if loop.planted else device
    graph.to(home)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Sage(width, loop.size(2048, 32), layers).to(device, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    def step(_):
        if not loop.planted:
            gaps.begin()
        hops = graph.sample(torch.randint(nodes, (seeds,), device=home), fan_outs)
        if loop.planted:
            gaps.begin()
        hop_1, hop_2 = (part.to(device).to(dtype) for part in hops)
        loss = model(hop_1, hop_2, fan_outs).float().square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
