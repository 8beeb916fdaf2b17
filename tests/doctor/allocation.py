# SPDX-License-Identifier: Apache-2.0
import torch

import plant


class Allocation(plant.Program):
    """A large buffer goes back to the driver every step and is allocated anew."""

    name = "allocation"
    verdicts = ("allocation_bound",)
    cause = "allocator"
    fixes = {"allocator": "no empty_cache(): the buffer is allocated once"}

    steps = 150  # what the driver takes for a buffer differs much from step to step

    def prepare(self):
        self.here = torch.zeros(1 << 29, device=self.device)
        self.there = torch.zeros_like(self.here)
        self.buffer = None

    def step(self):
        if self.fix != "allocator":
            with self.planted():
                self.buffer = None
                torch.cuda.empty_cache()
                self.buffer = torch.empty(4 << 30, dtype=torch.uint8, device=self.device)
        for _ in range(2):
            torch.mul(self.here, 0.5, out=self.there)
            torch.add(self.there, 1.0, out=self.here)


if __name__ == "__main__":
    plant.main(Allocation)
