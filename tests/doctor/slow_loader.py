# SPDX-License-Identifier: Apache-2.0
import time

import torch

import models
import plant


class Samples(torch.utils.data.Dataset):
    """Batches that a worker waits `seconds` for, as for a slow disk."""

    def __init__(self, seconds, rows=256, width=4096):
        self.seconds, self.rows, self.width = seconds, rows, width

    def __len__(self):
        return 1 << 20

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((self.rows, self.width), float(index % 7), dtype=torch.bfloat16)


class SlowLoader(plant.Program):
    """The data loader has too few workers: the device waits for batches."""

    name = "slow_loader"
    verdicts = ("input_bound",)
    cause = "loader"
    fixes = {"loader": "num_workers=8 instead of 1", "graphs": "the training step captured with torch.cuda.graph"}
    seconds = 12e-3
    prefetch = 4  # batches ahead, each worker

    def prepare(self):
        self.workers = 8 if self.fix == "loader" else 1
        data = torch.utils.data.DataLoader(Samples(self.seconds), batch_size=None, num_workers=self.workers, pin_memory=True,
                                           persistent_workers=True, prefetch_factor=self.prefetch)
        self.batches_of = iter(data)
        self.train = models.Trainer(models.perceptron())
        self.place = torch.zeros(4096, 4096, device=self.device, dtype=torch.bfloat16)
        self.graph = self.train.capture(self.place) if self.fix == "graphs" else None

    def begin(self):
        for _ in range(self.workers * self.prefetch + 1):  # those loaded while nobody asked would come for nothing
            next(self.batches_of)

    def step(self):
        with self.planted():
            batch = next(self.batches_of)
        batch = batch.to(self.device, non_blocking=True)
        self.place.view(16, -1).copy_(batch.view(1, -1).expand(16, -1))
        if self.graph is not None:
            self.graph.replay()
        else:
            self.train(self.place)

    def close(self):
        del self.batches_of


if __name__ == "__main__":
    plant.main(SlowLoader)
