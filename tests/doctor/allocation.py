# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class Allocation(plant.Program):
    """A large buffer goes back to the driver every step and is allocated anew."""

    name = "allocation"
    verdicts = ("allocation_bound",)
    cause = "allocator"
    fixes = {"allocator": "no empty_cache(): the buffer is allocated once"}

    def prepare(self):
        self.train = models.Trainer(models.perceptron(2048))
        self.batch = torch.randn(2048, 2048, device=self.device, dtype=torch.bfloat16)
        self.buffer = None

    def step(self):
        if self.fix != "allocator":
            with self.planted():
                self.buffer = None
                torch.cuda.empty_cache()
                self.buffer = torch.empty(4 << 30, dtype=torch.uint8, device=self.device)
        self.train(self.batch)


if __name__ == "__main__":
    plant.main(Allocation)
