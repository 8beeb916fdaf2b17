# SPDX-License-Identifier: Apache-2.0
"""github.com/boreshkinai/delta-interpolator PR#3 (workers started by spawn)

Each epoch begins with a pause although the motion data are small; some machines lose hours that way, others nothing.

Cause: every epoch tears down its loader workers and spawns new ones, which import PyTorch anew; the epochs are short
Line: training.py:forever
Remedy: persistent workers
"""
import numpy
import torch

import blind
import training


class Motion(torch.utils.data.Dataset):
    """Poses of one short clip a sample."""

    def __init__(self, samples, frames, width):
        self.samples, self.frames, self.width = samples, frames, width

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        poses = numpy.random.default_rng(index).random((self.frames, self.width), dtype=numpy.float32)
        return torch.from_numpy(poses)


def load_skeleton(_):
    """What a worker loads before its first sample."""
    import decimal
    import email
    import unittest
    import xml.dom.minidom

    torch.set_num_threads(1)
    return decimal, email, unittest, xml


def train_in_epochs(loop, start_method, steps_an_epoch):
    device = loop.device()
    batch, frames, width = loop.size(32, 2), loop.size(16, 2), loop.size(4096, 32)
    epoch_steps = loop.size(loop.steps + loop.warm_up + 1 if loop.variant == "healthy" else steps_an_epoch, 2)
    views = loop.size(32, 2)
    model, optimizer = training.make_model(loop.size(16, 2), width, device)
    loader = torch.utils.data.DataLoader(Motion(epoch_steps * batch, frames, width), batch_size=batch,
                                         num_workers=loop.size(8, 1), worker_init_fn=load_skeleton,
                                         multiprocessing_context=start_method, pin_memory=device.type == "cuda",
                                         persistent_workers=not loop.planted)
    batches, gaps = training.forever(loader), training.GpuGaps(loop, device)
    dtype = next(model.parameters()).dtype

    def step(_):
        clips = next(batches)
        gaps.begin()
        x = clips.to(device, non_blocking=True).to(dtype).flatten(0, 1)
        x = x.repeat(views, 1)
        training.train(model, optimizer, x + 0.01 * torch.randn_like(x))
        gaps.finish()

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    train_in_epochs(blind.Loop("short_epochs_respawn_spawned_workers", "input", steps=240), "spawn", 80)
