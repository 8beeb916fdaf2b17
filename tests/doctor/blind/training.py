# SPDX-License-Identifier: Apache-2.0
"""What several blind programs train with, and what they measure of the GPU with CUDA events."""
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


class GpuSpan:
    """Milliseconds from begin() to end() as the GPU sees them, less `due`, which the work between them must take.

    Only of the planted variant; in the others it does nothing."""

    def __init__(self, loop, device):
        self.loop, self.timed, self.due = loop, loop.planted and device.type == "cuda", 0.0
        self.start, self.pairs = None, collections.deque()

    def queued(self, work):
        """What the GPU takes for work() that lies in its queue already, so that no host holds it up."""
        took = []
        for i in range(4 if self.timed else 0):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            torch.cuda._sleep(80_000_000)  # about 40 ms, in which the host fills the queue
            begin.record()
            work()
            end.record()
            torch.cuda.synchronize()
            took.append(begin.elapsed_time(end))
        return sorted(took[1:])[1] if took else 0.0

    def begin(self):
        if self.timed:
            self.start = torch.cuda.Event(enable_timing=True)
            self.start.record()

    def end(self):
        if self.timed:
            end = torch.cuda.Event(enable_timing=True)
            end.record()
            self.pairs.append((self.start, end, self.due))
        while self.pairs and self.pairs[0][1].query():
            begin, end, due = self.pairs.popleft()
            self.loop.planted_ms.append(max(0.0, begin.elapsed_time(end) - due))


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
