# SPDX-License-Identifier: Apache-2.0
"""github.com/huggingface/datasets/issues/5841 (also #6637)

Images read from the data set in the format for PyTorch come at less than half the rate of the same rows in the format
for NumPy, and training waits for them.

Cause: each image goes from its compressed cell to a list of lists of Python numbers before it becomes a tensor, in
three workers that are too few for that.
Line: images_formatted_as_python_lists.py:row (in the workers)
Remedy: a view of the cell's bytes becomes the array; the number of workers stays.
"""
import zlib

import numpy as np
import torch
from torch import nn

import blind
import training


class Column:
    """Compressed cells of one column, with their shape; two ways to read a cell."""

    def __init__(self, shape, cells):
        self.shape, rng = shape, np.random.default_rng(7)
        coarse = rng.integers(0, 256, size=(cells, shape[0], shape[1] // 8, shape[2] // 8), dtype=np.uint8)
        self.cells = [zlib.compress(np.kron(c, np.ones((1, 8, 8), np.uint8)).tobytes(), 1) for c in coarse]

    def bytes_of(self, index):
        return zlib.decompress(self.cells[index % len(self.cells)])

    def to_python(self, index):
        return memoryview(self.bytes_of(index)).cast("B", self.shape).tolist()

    def to_numpy(self, index):
        return np.frombuffer(self.bytes_of(index), np.uint8).reshape(self.shape)


class TorchFormat:
    def row(self, column, index):
        return torch.tensor(np.array(column.to_python(index), dtype=np.int64)).to(torch.uint8)


class NumpyFormat:
    def row(self, column, index):
        return torch.from_numpy(column.to_numpy(index).copy())


class Images(torch.utils.data.Dataset):
    """Rows of the column, cropped and mirrored at random."""

    def __init__(self, column, form, samples, crop):
        self.column, self.form, self.samples, self.crop = column, form, samples, crop

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        image = self.form.row(self.column, index)
        rng = np.random.default_rng(index)
        top, left = (int(rng.integers(side - self.crop + 1)) for side in image.shape[1:])
        image = image[:, top:top + self.crop, left:left + self.crop]
        return (image.flip(2) if rng.random() < 0.5 else image).contiguous()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


def main():
    loop = blind.Loop("images_formatted_as_python_lists", "input", steps=220)
    device = loop.device()
    torch.manual_seed(0)
    side, crop, batch, width = loop.size(128, 16), loop.size(112, 8), loop.size(32, 2), loop.size(256, 8)
    depth = loop.size(40 if loop.variant == "healthy" else 18, 2)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    data = Images(Column((3, side, side), loop.size(256, 4)), TorchFormat() if loop.planted else NumpyFormat(),
                  (loop.steps + loop.warm_up + 1) * batch, crop)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(3, 1),
                                         pin_memory=device.type == "cuda", prefetch_factor=4)
    trunk = [Residual(width) for _ in range(depth)]
    model = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), *trunk, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(width, 100)).to(device, dtype, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches, gaps = iter(loader), training.GpuGaps(loop, device)

    def step(i):
        images = next(batches)
        gaps.begin()
        x = images.to(device, non_blocking=True).to(dtype).div(255).contiguous(memory_format=torch.channels_last)
        training.train(model, optimizer, x)
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
