# SPDX-License-Identifier: Apache-2.0
"""What several blind programs train with, and what they measure of the GPU with CUDA events."""
import collections

import torch

import blind


class GpuTimes:
    """Pairs of CUDA events whose distances go to loop.planted_ms, summed up for each measured step, once known."""

    def __init__(self, loop, timed):
        self.loop, self.timed, self.pairs, self.latest = loop, timed, collections.deque(), None
        loop.at_end.append(self.collect)

    def record(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def keep(self, begin, due=0.0):
        self.pairs.append((begin, self.record(), due, self.loop.at))

    def collect(self):
        while self.pairs and self.pairs[0][1].query():
            begin, end, due, step = self.pairs.popleft()
            took = max(0.0, begin.elapsed_time(end) - due)
            if step == self.latest:
                self.loop.planted_ms[-1] += took
            elif step >= self.loop.warm_up:  # of the warm-up some become known later
                self.loop.planted_ms.append(took)
                self.latest = step


class GpuGaps(GpuTimes):
    """Milliseconds the GPU lay idle between the end of one step and the first work of the next, from CUDA events."""

    def __init__(self, loop, device):
        super().__init__(loop, device.type == "cuda")
        self.end = None

    def begin(self):
        if self.timed and self.end is not None:
            self.keep(self.end)
        self.collect()

    def finish(self):
        if self.timed:
            self.end = self.record()


class GpuSpan(GpuTimes):
    """Milliseconds from begin() to end() as the GPU sees them, less `due`, which the work between them must take.

    Only of the planted variant; in the others it does nothing."""

    def __init__(self, loop, device):
        super().__init__(loop, loop.planted and device.type == "cuda")
        self.start, self.due = None, 0.0

    def queued(self, work):
        """What the GPU takes for work() that lies in its queue already, so that no host holds it up."""
        took = []
        for _ in range(4 if self.timed else 0):
            torch.cuda.synchronize()
            torch.cuda._sleep(80_000_000)  # about 40 ms, in which the host fills the queue
            begin = self.record()
            work()
            end = self.record()
            torch.cuda.synchronize()
            took.append(begin.elapsed_time(end))
        return sorted(took[1:])[1] if took else 0.0

    def begin(self):
        if self.timed:
            self.start = self.record()

    def end(self):
        if self.timed:
            self.keep(self.start, self.due)
        self.collect()


def make_model(layers, width, device):
    """A plain ReLU network, bfloat16 on a GPU, and its optimizer."""
    torch.manual_seed(0)
    blocks = [part for _ in range(layers) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = torch.nn.Sequential(*blocks).to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


class WideNetwork(torch.nn.Module):
    """Three products for each activation, and no biases: of a step, next to nothing lies outside large products."""

    def __init__(self, inputs, width, outputs, groups=1):
        super().__init__()
        sides = [inputs] + [width] * 3 * groups
        self.products = torch.nn.ModuleList(torch.nn.Linear(a, b, bias=False) for a, b in zip(sides, sides[1:]))
        self.head = torch.nn.Linear(width, outputs, bias=False)

    def forward(self, x):
        for i, product in enumerate(self.products):
            x = product(x)
            if i % 3 == 2:
                x = torch.relu(x)
        return self.head(x)


def make_wide(inputs, width, device, groups=1):
    """A network with nothing to win and its optimizer, bfloat16."""
    torch.manual_seed(0)
    with torch.device(device):
        network = WideNetwork(inputs, width, 64, groups).to(torch.bfloat16)
    return network, torch.optim.SGD(network.parameters(), lr=1e-3)


def recorded(work, device):
    """work() recorded as one CUDA graph, to be replayed; on a CPU work itself."""
    if device.type != "cuda":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return lambda work=work: graph.replay()  # what the graph works on lives as long as it does


def run_full_steps(loop, device):
    """Runs recorded training steps that leave nothing to win: large products, about 30 ms of them on an H200."""
    rows, width = loop.size(16384, 16), loop.size(8192, 16)
    network, optimizer = make_wide(width, width, device)
    x = torch.randn(rows, width, device=device).to(torch.bfloat16)
    step = recorded(lambda: train(network, optimizer, x), device)
    loop.run(lambda i: step(), blind.wait_for(device))


def train(model, optimizer, x):
    loss = model(x).float().square().mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()


def forever(loader):
    while True:
        yield from loader
