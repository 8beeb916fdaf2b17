# SPDX-License-Identifier: Apache-2.0
"""github.com/open-mmlab/mmhuman3d PR#233

Training runs well, but before each epoch there is a long wait in which the GPU does nothing at all.

Cause: the loader ends its workers after every epoch, and the new ones build the sample index again
Line: index_rebuilt_by_workers_each_epoch.py:build_index (in the workers)
Remedy: persistent workers, which build the index once
"""
import torch

import blind
import training


class Meshes(torch.utils.data.Dataset):
    """Vertices of body meshes, looked up by name in an index that each worker builds."""

    def __init__(self, samples, entries, rows, width):
        self.samples, self.entries, self.index = samples, entries, None
        self.vertices = torch.randn(256, rows, width, generator=torch.Generator().manual_seed(2))

    def build_index(self):
        self.index = {}
        for entry in range(self.entries):
            subject, frame = divmod(entry, 1000)
            self.index[f"subject_{subject:05d}/frame_{frame:04d}"] = (entry * 7919) % 256

    def __len__(self):
        return self.samples

    def __getitem__(self, item):
        entry = item % self.entries
        return self.vertices[self.index[f"subject_{entry // 1000:05d}/frame_{entry % 1000:04d}"]]


def start_worker(_):
    torch.set_num_threads(1)
    torch.utils.data.get_worker_info().dataset.build_index()


def main():
    loop = blind.Loop("index_rebuilt_by_workers_each_epoch", "input", steps=180)
    device = loop.device()
    batch, width = loop.size(64, 2), loop.size(4096, 32)
    epoch_steps = loop.size(loop.steps + loop.warm_up + 1 if loop.variant == "healthy" else 60, 2)
    model, optimizer = training.make_model(loop.size(16, 2), width, device)
    data = Meshes(epoch_steps * batch, loop.size(3_000_000, 2000), 4, width)
    loader = torch.utils.data.DataLoader(data, batch_size=batch, num_workers=loop.size(4, 1),
                                         worker_init_fn=start_worker, pin_memory=device.type == "cuda",
                                         persistent_workers=not loop.planted)
    batches, gaps = training.forever(loader), training.GpuGaps(loop, device)
    dtype, views = next(model.parameters()).dtype, loop.size(64, 2)

    def step(_):
        meshes = next(batches)
        gaps.begin()
        x = meshes.to(device, non_blocking=True).to(dtype).flatten(0, 1).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
