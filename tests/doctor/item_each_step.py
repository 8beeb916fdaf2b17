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
        for value in (out.detach().max(), out.detach().min(), out.detach().mean()):
            if self.look and not abs(value.item()) < float("inf"):
                raise SystemExit("the activations are not finite")
        return out


class ItemEachStep(plant.Program):
    """The host reads values with .item() after every layer, so it never runs ahead of the device."""

    name = "item_each_step"
    verdicts = ("sync_bound",)
    cause = "syncs"
    fixes = {"syncs": "the values stay on the device"}

    def prepare(self):
        layers = [Checked(layer, look=False) for layer in models.perceptron(4096, 8)]
        self.train = models.Trainer(torch.nn.Sequential(*layers))
        self.batch = torch.randn(4096, 4096, device=self.device, dtype=torch.bfloat16)
        self.stretch(self.warm_up)
        self.alone = self.stretch(self.steps)["step_ms"]
        for layer in layers:
            layer.look = self.fix is None

    def step(self):
        self.train(self.batch)

    def planted_ms(self, step_ms):
        return step_ms - self.alone  # without waits the host runs ahead, even when it is recorded


if __name__ == "__main__":
    plant.main(ItemEachStep)
