# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class ItemEachStep(plant.Program):
    """The loss is read with .item() after every layer's product, so the host never runs ahead."""

    name = "item_each_step"
    verdicts = ("sync_bound",)
    cause = "syncs"
    fixes = {"syncs": "the loss stays on the device"}

    def prepare(self):
        self.model = models.perceptron(1024, 12)
        self.batch = torch.randn(1024, 1024, device=self.device, dtype=torch.bfloat16)
        self.last = 0.0

    def step(self):
        out = self.batch
        with torch.no_grad():
            for _ in range(4):
                for layer in self.model:
                    out = layer(out)
                out = out.clamp(-1, 1)
                loss = out.float().square().mean()
                if self.fix != "syncs":
                    with self.planted():
                        self.last = loss.item()


if __name__ == "__main__":
    plant.main(ItemEachStep)
