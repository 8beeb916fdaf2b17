# SPDX-License-Identifier: Apache-2.0
import torch

import plant


class Allocation(plant.Program):
    """A large buffer goes back to the driver every step and is allocated anew."""

    name = "allocation"
    verdicts = ("allocation_bound",)
    cause = "allocator"
    fixes = {"allocator": "no empty_cache(): the buffer is allocated once"}

    def prepare(self):
        shape = (8192, 8192)
        self.weights = [torch.randn(shape, device=self.device, dtype=torch.bfloat16) for _ in range(3)]
        self.here, self.there = torch.zeros(shape, device=self.device, dtype=torch.bfloat16), torch.zeros(
            shape, device=self.device, dtype=torch.bfloat16)
        self.buffer = None

    def step(self):
        if self.fix != "allocator":
            with self.planted():
                self.buffer = None
                torch.cuda.empty_cache()
                self.buffer = torch.empty(4 << 30, dtype=torch.uint8, device=self.device)
        for weight in self.weights:
            torch.mm(self.here, weight, out=self.there)
            self.here, self.there = self.there, self.here
        self.here.zero_()


if __name__ == "__main__":
    plant.main(Allocation)
