# SPDX-License-Identifier: Apache-2.0
"""https://github.com/NVIDIA/apex/issues/304 (also Deci-AI/super-gradients#1990)

I use the prefetcher of the example, which copies the next batch on another stream while the model runs, so that there
is a very small gap between two iterations only. This trick does not work for me. Does it really speed up training?

Cause: none. The loader's workers are ahead, the batches lie in page-locked memory, and copying one takes less than a
hundredth of the step; the GPU is never without work.
Line: batches_prefetched_on_a_side_stream.py:step
Remedy: there is none to find; `fixed` does the obvious thing and copies the next batch on a stream of its own.
Trap: a side stream can hide copies only, of which there is next to nothing here.
"""
import torch
from torch import nn

import blind
import training

PATCH = 16


class Stored(torch.utils.data.Dataset):
    """Images that are decoded already."""

    def __init__(self, samples, side):
        self.samples = samples
        self.images = torch.randint(0, 256, (48, side, side, 3), dtype=torch.uint8)

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return self.images[index * 7919 % len(self.images)]


class Prefetcher:
    """The next batch is on its way to the GPU, on a stream of its own, while the one before is trained with."""

    def __init__(self, batches, device):
        self.batches, self.device = batches, device
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        self.preload()

    def preload(self):
        images = next(self.batches)
        if self.stream is None:
            self.ready = images.to(self.device)
            return
        with torch.cuda.stream(self.stream):
            self.ready = images.to(self.device, non_blocking=True)

    def __next__(self):
        images = self.ready
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            images.record_stream(torch.cuda.current_stream())
        self.preload()
        return images


class PatchNetwork(nn.Module):
    """A row for each patch of 16 x 16 pixels."""

    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, images):
        batch, side = images.shape[0], images.shape[1] // PATCH
        x = images.view(batch, side, PATCH, side, PATCH, 3).permute(0, 1, 3, 2, 4, 5).reshape(-1, 3 * PATCH * PATCH)
        return self.body(x.to(torch.bfloat16) / 128 - 1)


def main():
    loop = blind.Loop("batches_prefetched_on_a_side_stream", "none", steps=170)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, side = loop.size(64, 2), loop.size(224, 32)
    body, _ = training.make_wide(3 * PATCH * PATCH, loop.size(8192, 16), device, groups=2)
    model = PatchNetwork(body)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = Stored((loop.steps + loop.warm_up + 2) * batch, side)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(6, 1),
                                         pin_memory=device.type == "cuda", prefetch_factor=4)
    batches = iter(loader)
    if not loop.planted:
        batches = Prefetcher(batches, device)

    def step(i):
        training.train(model, optimizer, next(batches).to(device, non_blocking=True))

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
