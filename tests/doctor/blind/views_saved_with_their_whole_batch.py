# SPDX-License-Identifier: Apache-2.0
"""https://github.com/pytorch/pytorch/issues/33101 (also pytorch/pytorch#1995 and #21926)

I saved the activations of a network, a file for each image, to train another one with them. The files are huge, and
their size depends on the batch size. I found that each of them holds all of the batch.

Cause: torch.save of one row of a tensor writes the memory of the whole tensor. A worker that wants one image reads 64
of them, and keeps one.
Line: views_saved_with_their_whole_batch.py:__getitem__ (its call of torch.load, in the loader's workers).
Remedy: each row is cloned before it is saved.
"""
import tempfile

import torch

import blind
import training


class Activations(torch.utils.data.Dataset):
    """Drawn in turn for as long as the training wants."""

    def __init__(self, folder, files, count):
        self.folder, self.files, self.count = folder, files, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return torch.load(f"{self.folder}/{i % self.files}.pt")


def save(folder, files, rows, width, whole):
    """A file for each image of one batch of the first network: its activations in `rows` places."""
    batch = torch.randn(files, rows, width, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    for i, activations in enumerate(batch):
        torch.save(activations if whole else activations.clone(), f"{folder}/{i}.pt")


def main():
    loop = blind.Loop("views_saved_with_their_whole_batch", "disk", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    files, rows, width, batch = loop.size(64, 4), loop.size(128, 4), loop.size(2048, 16), loop.size(16, 2)
    with tempfile.TemporaryDirectory() as folder:
        save(folder, files, rows, width, loop.planted)
        data = Activations(folder, files, batch * (loop.warm_up + loop.steps))
        # Shuffled: pictures come in another order than they were saved in.
        loader = torch.utils.data.DataLoader(data, batch, shuffle=True, num_workers=loop.size(4, 1),
                                             pin_memory=device.type == "cuda")
        batches = iter(loader)
        model, optimizer = training.make_wide(width, loop.size(8192, 16), device, groups=loop.size(3, 1))
        gaps = training.GpuGaps(loop, device)

        def step(i):
            activations = next(batches)
            gaps.begin()
            training.train(model, optimizer, activations.to(device, non_blocking=True).view(-1, width))
            gaps.finish()

        loop.run(step, blind.wait_for(device))
        del batches  # its workers end before their files go


if __name__ == "__main__":
    main()
