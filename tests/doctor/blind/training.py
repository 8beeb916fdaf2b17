# SPDX-License-Identifier: Apache-2.0
"""What several blind programs train with, and the gaps of the GPU as CUDA events see them."""
import collections

import torch


class GpuGaps:
    """Milliseconds the GPU lay idle between the end of one step and the first work of the next, from CUDA events."""

    def __init__(self, loop, device):
        self.loop, self.timed, self.end, self.pairs = loop, device.type == "cuda", None, collections.deque()

    def record(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def begin(self):
        if self.timed and self.end is not None:
            self.pairs.append((self.end, self.record()))
        while self.pairs and self.pairs[0][1].query():
            end, begin = self.pairs.popleft()
            self.loop.planted_ms.append(end.elapsed_time(begin))

    def finish(self):
        if self.timed:
            self.end = self.record()


def make_model(layers, width, device):
    """A plain ReLU network, bfloat16 on a GPU, and its optimizer."""
    torch.manual_seed(0)
    blocks = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def train(model, optimizer, x):
    loss = model(x).float().square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def forever(loader):
    while True:
        yield from loader
