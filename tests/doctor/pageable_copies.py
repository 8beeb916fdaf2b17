# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class PageableCopies(plant.Program):
    """Batches are copied from pageable memory, which holds host and device until they are there."""

    name = "pageable_copies"
    verdicts = ("copy_bound",)
    cause = "copies"
    healthy_with = "copies"
    fixes = {"copies": "pinned memory, copied one batch ahead on a stream of its own"}
    rows = 8192

    def prepare(self):
        self.train = models.Trainer(models.perceptron())
        self.source = torch.randn(self.rows, 4096).to(torch.bfloat16)
        self.next = None
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
                batch = self.source.to(self.device)
        self.train(batch)


if __name__ == "__main__":
    plant.main(PageableCopies)
