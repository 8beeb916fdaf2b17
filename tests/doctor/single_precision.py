# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class SinglePrecision(plant.Program):
    """Matrix products in fp32 that tensor cores could do in TF32."""

    name = "single_precision"
    verdicts = ("gpu_bound",)
    cause = "precision"
    fixes = {"precision": "torch.backends.cuda.matmul.allow_tf32",
             "graphs": "the whole step captured with torch.cuda.graph"}

    def prepare(self):
        torch.backends.cuda.matmul.allow_tf32 = self.fix == "precision"
        self.train = models.Trainer(models.perceptron(4096, 4, torch.float32))
        self.batch = torch.randn(4096, 4096, device=self.device)
        self.graph = self.train.capture(self.batch) if self.fix == "graphs" else None

    def step(self):
        if self.graph is not None:
            self.graph.replay()
        else:
            self.train(self.batch)

    def planted_ms(self, step_ms):
        return 0.0  # told from the kernels' names; what tensor cores bring is measured by the fix

    def close(self):
        torch.backends.cuda.matmul.allow_tf32 = False


if __name__ == "__main__":
    plant.main(SinglePrecision)
