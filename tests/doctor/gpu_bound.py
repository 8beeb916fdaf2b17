# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class GpuBound(plant.Program):
    """Nothing is planted: large matrix products on tensor cores, data already on the device."""

    name = "gpu_bound"
    verdicts = ("gpu_bound",)
    fixes = {"graphs": "the whole step captured with torch.cuda.graph", "batch": "a batch twice as large"}
    rows, width = 8192, 8192

    def prepare(self):
        self.batches = 2 if self.fix == "batch" else 1
        self.train = models.Trainer(models.perceptron(self.width, 3))
        self.batch = torch.randn(self.rows * self.batches, self.width, device=self.device, dtype=torch.bfloat16)
        self.graph = self.train.capture(self.batch) if self.fix == "graphs" else None

    def step(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            self.train(self.batch)


if __name__ == "__main__":
    plant.main(GpuBound)
