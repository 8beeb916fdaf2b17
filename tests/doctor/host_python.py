# SPDX-License-Identifier: Apache-2.0
import time

import torch

import models
import plant


class HostPython(plant.Program):
    """Python that has nothing to do with the device runs between the steps."""

    name = "host_python"
    verdicts = ("host_bound",)
    cause = "host_work"
    healthy_with = "host_work"
    fixes = {"host_work": "the Python is gone from the loop"}

    def prepare(self):
        self.train = models.Trainer(models.perceptron())
        self.batch = torch.randn(4096, 4096, device=self.device, dtype=torch.bfloat16)
        self.total = 0

    def step(self):
        if self.fix != "host_work":
            with self.planted():
                until = time.perf_counter() + 8e-3
                while time.perf_counter() < until:
                    self.total += 1
        self.train(self.batch)


if __name__ == "__main__":
    plant.main(HostPython)
