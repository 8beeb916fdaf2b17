# SPDX-License-Identifier: Apache-2.0
"""github.com/pytorch/pytorch#12831

With no workers the loader is fine; with any number of workers above zero it is many times slower.

Cause: workers are spawned every epoch, and each one imports the main script and repeats the work at its top level
Line: spawned_workers_rerun_the_main_script.py:make_lookup (at the top level, in the workers)
Remedy: work at the top level only in the main process, and persistent workers
"""
import sys

import torch

import blind
import training

PLANTED = not {"fixed", "healthy"} & set(sys.argv)
SMALL = "--small" in sys.argv


def make_lookup(entries):
    """A table of strings for the report that the main process writes at the end."""
    return {f"class_{i:07d}": i * 2654435761 % 1000003 for i in range(entries)}


# Only the main process needs it; whoever spawned workers without the guard pays for it once a worker.
LOOKUP = make_lookup(20_000 if SMALL else 4_000_000) if PLANTED or __name__ == "__main__" else {}


class Rows(torch.utils.data.Dataset):
    def __init__(self, samples, rows, width):
        self.samples, self.rows, self.width = samples, rows, width

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return torch.rand(self.rows, self.width, generator=torch.Generator().manual_seed(index))


def one_thread(_):
    torch.set_num_threads(1)


def main():
    loop = blind.Loop("spawned_workers_rerun_the_main_script", "input", steps=200)
    device = loop.device()
    batch, width, views = loop.size(32, 2), loop.size(4096, 32), loop.size(64, 2)
    epoch_steps = loop.size(loop.steps + loop.warm_up + 1 if loop.variant == "healthy" else 100, 2)
    model, optimizer = training.make_model(loop.size(16, 2), width, device)
    loader = torch.utils.data.DataLoader(Rows(epoch_steps * batch, 8, width), batch_size=batch,
                                         num_workers=loop.size(4, 1), multiprocessing_context="spawn",
                                         worker_init_fn=one_thread, pin_memory=device.type == "cuda",
                                         persistent_workers=not PLANTED)
    batches, gaps, dtype = training.forever(loader), training.GpuGaps(loop, device), next(model.parameters()).dtype

    def step(_):
        x = next(batches)
        gaps.begin()
        x = x.to(device, non_blocking=True).to(dtype).flatten(0, 1).repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))
    print(f"{len(LOOKUP)} classes in the lookup", file=sys.stderr)


if __name__ == "__main__":
    main()
