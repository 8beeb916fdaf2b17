# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class GrowingStep(plant.Program):
    """A history that every step makes longer and goes through once more: each step takes longer than the last."""

    name = "growing_step"
    verdicts = ("host_bound",)
    cause = "host_work"
    drift = True
    fixes = {"host_work": "the history is summed as it grows"}

    def prepare(self):
        self.train = models.Trainer(models.perceptron())
        self.batch = torch.randn(4096, 4096, device=self.device, dtype=torch.bfloat16)
        self.history = self.total = 0

    def begin(self):
        self.history = 0

    def step(self):
        self.history += 6_000
        if self.fix != "host_work":
            with self.planted():
                self.total = sum(value % 7 for value in range(self.history))
        self.train(self.batch)


if __name__ == "__main__":
    plant.main(GrowingStep)
