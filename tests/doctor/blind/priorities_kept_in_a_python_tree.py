# SPDX-License-Identifier: Apache-2.0
"""https://github.com/werner-duvaud/muzero-general/pull/117 (also sfujim/TD7#3)

With a large replay buffer and a large batch one core is at 100% and training is slow; most of the time goes into
getting the next batch from the buffer, not into the network.

Cause: the priorities lie in a sum tree of Python numbers, walked once for each sample that is drawn and once for each
priority that has changed, and the new errors have to be brought to the host for it.
Line: priorities_kept_in_a_python_tree.py:draw and change
Remedy: the priorities lie in one tensor on the GPU, where a running sum and a search draw the samples.
"""
import random

import torch
from torch import nn

import blind
import training


class Tree:
    """A binary tree whose leaves are priorities and whose inner nodes are sums; node 1 is the root."""

    def __init__(self, leaves, seed):
        self.leaves, self.random = leaves, random.Random(seed)
        self.sums = [0.0] * leaves + [1.0] * leaves
        for node in range(leaves - 1, 0, -1):
            self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]

    def draw(self, count):
        drawn = []
        for _ in range(count):
            node, rest = 1, self.random.random() * self.sums[1]
            while node < self.leaves:
                node *= 2
                if rest > self.sums[node]:
                    rest -= self.sums[node]
                    node += 1
            drawn.append(node - self.leaves)
        return drawn

    def change(self, indices, priorities):
        for index, priority in zip(indices, priorities):
            node = index + self.leaves
            self.sums[node] = priority
            while node > 1:
                node //= 2
                self.sums[node] = self.sums[2 * node] + self.sums[2 * node + 1]


def main():
    loop = blind.Loop("priorities_kept_in_a_python_tree", "host", steps=250)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    leaves, count, width = loop.size(1 << 18, 64), loop.size(1536, 8), loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(24, 1), width, device)
        model = nn.Sequential(nn.Linear(64, width), body, nn.Linear(width, 1)).to(torch.bfloat16)
        seen = torch.randn(leaves, 64).to(torch.bfloat16)
        returns = torch.randn(leaves)
        priorities = torch.ones(leaves)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    tree = Tree(leaves, 0)
    drawn = tree.draw(count)
    waiting, gaps = torch.tensor(drawn), training.GpuGaps(loop, device)

    def update(chosen):
        """Absolute errors of the chosen samples, before the step that they make."""
        error = model(seen[chosen]).squeeze(1).float() - returns[chosen]
        optimizer.zero_grad(set_to_none=True)
        error.square().mean().backward()
        optimizer.step()
        return error.detach().abs() + 1e-3

    def step(i):
        nonlocal drawn, waiting
        if not loop.planted:
            total = priorities.cumsum(0)
            chosen = torch.searchsorted(total, torch.rand(count, device=device) * total[-1]).clamp(max=leaves - 1)
            priorities[chosen] = update(chosen)
            return
        gaps.begin()
        errors = update(waiting.to(device))
        gaps.finish()
        tree.change(drawn, errors.tolist())  # the GPU has nothing to do once the errors are there
        drawn = tree.draw(count)
        waiting = torch.tensor(drawn)

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
