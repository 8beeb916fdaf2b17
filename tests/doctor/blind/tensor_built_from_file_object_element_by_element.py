# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch#28761

Making a tensor of an array that lives in a file takes absurdly long, though reading the file itself is quick.

Cause: the tensor constructor walks the array-like object element by element through Python, while the GPU waits
Line: tensor_built_from_file_object_element_by_element.py:read_batch
Remedy: read a NumPy array of the batch first and take the tensor from its memory
"""
import numpy
import torch

import blind
import training


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


def main():
    loop = blind.Loop("tensor_built_from_file_object_element_by_element", "host", steps=250)
    device = loop.device()
    rows, width = loop.size(128, 8), loop.size(4096, 32)
    views = loop.size(48, 2)
    source = numpy.random.default_rng(3).random((16, rows, width), dtype=numpy.float32)
    groups = [Measurements(part) for part in source]
    model, optimizer = training.make_model(loop.size(32 if loop.variant == "healthy" else 16, 2), width, device)
    gaps, dtype = training.GpuGaps(loop, device), next(model.parameters()).dtype

    def step(i):
        batch = read_batch(groups[i % 16], as_array=not loop.planted)
        gaps.begin()
        x = batch.to(device).to(dtype).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
