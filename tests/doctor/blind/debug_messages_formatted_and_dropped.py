# SPDX-License-Identifier: Apache-2.0
"""https://github.com/NVIDIA-NeMo/Emerging-Optimizers/pull/255 (also vllm-project/vllm-ascend#15552)

The routing of a mixture of experts can be watched in the log, when the level is set to debug. In production the level
is higher and nothing is written; still each step takes much longer than the same model without those lines.

Cause: the message is an f-string, made before the logger looks at its level: to write a tensor down, dozens of its
elements are read from the GPU one by one, and each reading waits for the device.
Line: debug_messages_formatted_and_dropped.py:Block.forward
Remedy: the tensor goes to the logger as an argument, which is formatted only if someone wants the message.
Trap: the level of the logger is raised already, and the log is empty.
"""
import logging

import torch
from torch import nn

import blind
import training

log = logging.getLogger("routing")
EXPERTS = 16


class Block(nn.Module):
    """A wide layer whose output is weighted by what a router says of each token."""

    def __init__(self, number, width, lazily):
        super().__init__()
        self.number, self.lazily = number, lazily
        self.router = nn.Linear(width, EXPERTS, bias=False)
        self.up, self.down = nn.Linear(width, 2 * width, bias=False), nn.Linear(2 * width, width, bias=False)

    def forward(self, x):
        scores = self.router(x).softmax(dim=-1)
        if self.lazily:
            log.debug("block %d: scores of the experts %s", self.number, scores)
        else:
            log.debug(f"block {self.number}: scores of the experts {scores}")
        return x + self.down(torch.relu(self.up(x))) * scores.amax(dim=-1, keepdim=True)


def main():
    loop = blind.Loop("debug_messages_formatted_and_dropped", "sync")
    logging.basicConfig(level=logging.WARNING)
    device = loop.device()
    if loop.variant == "healthy":
        loop.steps = min(loop.steps, 150)
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    tokens, width, blocks = loop.size(8192, 16), loop.size(2048, 32), loop.size(8, 2)
    with torch.device(device):
        model = nn.Sequential(*(Block(n, width, not loop.planted) for n in range(blocks)))
        model.to(torch.bfloat16)
        x = torch.randn(tokens, width).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    loop.run(lambda i: training.train(model, optimizer, x), blind.wait_for(device))


if __name__ == "__main__":
    main()
