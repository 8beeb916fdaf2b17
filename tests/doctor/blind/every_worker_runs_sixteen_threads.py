# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch#19825

After a rebuild, the training example with eight loader workers takes over twice as long as before.

Cause: every worker runs its small CPU tensor operations on an OpenMP pool of sixteen threads; the pools fight for cores
Line: every_worker_runs_sixteen_threads.py:__getitem__ (in the workers)
Remedy: one thread a worker
"""
import collections

import torch

import blind


class Spectra(torch.utils.data.Dataset):
    """Samples of `rows` x `width` numbers, scaled and squashed on the CPU."""

    def __init__(self, samples, rows, width):
        self.samples = samples
        self.raw = torch.rand(64, rows, width, generator=torch.Generator().manual_seed(1))

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        x = self.raw[index % 64]
        x = x - x.mean()
        x = x * 1.5
        x = torch.tanh(x)
        x = x + 0.1
        return torch.sqrt(x.abs()).bfloat16()


def sixteen_threads(_):
    torch.set_num_threads(16)


def one_thread(_):
    torch.set_num_threads(1)


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


def main():
    loop = blind.Loop("every_worker_runs_sixteen_threads", "threads", steps=600)
    device = loop.device()
    rows, width = loop.size(16, 4), loop.size(4096, 64)
    batch = loop.size(96, 4)
    layers = loop.size(48 if loop.variant == "healthy" else 24, 2)
    model, optimizer = make_model(layers, width, device)
    data = Spectra((loop.steps + loop.warm_up + 1) * batch, rows, width)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(8, 2), drop_last=True,
                                         pin_memory=device.type == "cuda",
                                         worker_init_fn=sixteen_threads if loop.planted else one_thread)
    batches, gaps = iter(loader), GpuGaps(loop, device)
    dtype = next(model.parameters()).dtype

    def step(_):
        x = next(batches)
        gaps.begin()
        train(model, optimizer, x.to(device, non_blocking=True).to(dtype).flatten(0, 1))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
