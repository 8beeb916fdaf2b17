# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch#28761

Making a tensor of an array that lives in a file takes absurdly long, though reading the file itself is quick.

Cause: the tensor constructor walks the array-like object element by element through Python, while the GPU waits
Line: tensor_built_from_file_object_element_by_element.py:read_batch
Remedy: read a NumPy array of the batch first and take the tensor from its memory
"""
import collections

import numpy
import torch

import blind


class Measurements:
    """A data set of a scientific file format: has a length and items, but does not expose its memory."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]  # raises IndexError past the end, as a sequence must

    def read(self):
        return numpy.asarray(self.rows)


def read_batch(group, as_array):
    return torch.from_numpy(group.read()) if as_array else torch.tensor(group)


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
    loop = blind.Loop("tensor_built_from_file_object_element_by_element", "host", steps=250)
    device = loop.device()
    rows, width = loop.size(128, 8), loop.size(4096, 32)
    views = loop.size(48, 2)
    source = numpy.random.default_rng(3).random((16, rows, width), dtype=numpy.float32)
    groups = [Measurements(part) for part in source]
    model, optimizer = make_model(loop.size(32 if loop.variant == "healthy" else 16, 2), width, device)
    gaps, dtype = GpuGaps(loop, device), next(model.parameters()).dtype

    def step(i):
        batch = read_batch(groups[i % 16], as_array=not loop.planted)
        gaps.begin()
        x = batch.to(device).to(dtype).repeat(views, 1)
        train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
