# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class GpuBound(plant.Program):
    """Nothing is planted: large matrix products on tensor cores, data already on the device."""

    name = "gpu_bound"
    verdicts = ("gpu_bound",)
    fixes = {"graphs": "the whole step captured with torch.cuda.graph"}
    rows, width = 8192, 8192

    def prepare(self):
        self.train = models.Trainer(models.perceptron(self.width, 3))
        self.batch = torch.randn(self.rows, self.width, device=self.device, dtype=torch.bfloat16)
        self.graph = None
        if self.fix == "graphs":
            for _ in range(3):
                self.train(self.batch)
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.train(self.batch)

    def step(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            self.train(self.batch)


if __name__ == "__main__":
    plant.main(GpuBound)
