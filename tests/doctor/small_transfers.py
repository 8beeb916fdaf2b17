# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class SmallTransfers(plant.Program):
    """A batch that travels to the device in hundreds of small pieces instead of one block."""

    name = "small_transfers"
    verdicts = ("copy_bound",)
    cause = "copies"
    fixes = {"copies": "one pinned block, copied one batch ahead on a stream of its own"}
    pieces = 400

    def prepare(self):
        self.train = models.Trainer(models.perceptron(4096))
        self.source = torch.randn(self.pieces, 4096).to(torch.bfloat16)
        self.rows = list(self.source)
        if self.fix == "copies":
            self.source = self.source.pin_memory()
            self.side = torch.cuda.Stream()
            self.fetch()

    def fetch(self):
        with torch.cuda.stream(self.side):
            self.next = self.source.to(self.device, non_blocking=True)

    def step(self):
        if self.fix == "copies":
            torch.cuda.current_stream().wait_stream(self.side)
            batch = self.next
            batch.record_stream(torch.cuda.current_stream())
            self.fetch()
        else:
            with self.planted():
                batch = [row.to(self.device) for row in self.rows]
            batch = torch.stack(batch)
        batch = batch.repeat(10, 1)
        self.train(batch)


if __name__ == "__main__":
    plant.main(SmallTransfers)
