# SPDX-License-Identifier: Apache-2.0
import torch

import models
import plant


class Checked(torch.nn.Module):
    """A layer whose output is looked at by the host, as a search for the first NaN does."""

    def __init__(self, layer, look):
        super().__init__()
        self.layer, self.look = layer, look

    def forward(self, batch):
        out = self.layer(batch)
        largest = out.detach().max()
        if self.look and not largest.item() < float("inf"):
            raise SystemExit("the activations are not finite")
        return out


class ItemEachStep(plant.Program):
    """The host reads a value with .item() after every layer, so it never runs ahead of the device."""

    name = "item_each_step"
    verdicts = ("sync_bound",)
    cause = "syncs"
    by_difference = True
    fixes = {"syncs": "the values stay on the device"}

    def prepare(self):
        layers = [Checked(layer, self.fix is None) for layer in models.perceptron(4096, 8)]
        self.train = models.Trainer(torch.nn.Sequential(*layers))
        self.batch = torch.randn(2048, 4096, device=self.device, dtype=torch.bfloat16)

    def step(self):
        self.train(self.batch)


if __name__ == "__main__":
    plant.main(ItemEachStep)
