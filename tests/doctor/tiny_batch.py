# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class TinyBatch(plant.Program):
    """A batch so small that the device waits for the host to launch each kernel."""

    name = "tiny_batch"
    verdicts = ("launch_bound",)
    cause = "graphs"
    fixes = {"graphs": "the whole step captured with torch.cuda.graph", "batch": "batch 64 instead of 32"}

    def prepare(self):
        self.batches = 2 if self.fix == "batch" else 1
        self.batch = torch.randn(32 * self.batches, 512, device=self.device, dtype=torch.bfloat16)
        self.train = models.Trainer(models.perceptron(512, 16))
        self.graph = self.train.capture(self.batch)
        self.alone = models.graph_ms(self.graph)

    def step(self):
        if self.fix == "graphs":
            self.graph.replay()
        else:
            self.train(self.batch)

    def planted_ms(self, step_ms):
        return step_ms - self.alone


if __name__ == "__main__":
    plant.main(TinyBatch)
