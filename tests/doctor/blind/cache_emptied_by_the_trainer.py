# SPDX-License-Identifier: Apache-2.0
"""https://github.com/huggingface/transformers/issues/31372 (fix in PR#31530)

After an update of the library the same fine-tuning script takes clearly longer for an epoch; nothing in the script has
changed, and the loss is the same.

Cause: the trainer gives all cached memory back after each step, so the next one has to ask the driver for every block
again, and both wait for the GPU.
Line: cache_emptied_by_the_trainer.py:training_step
Remedy: no empty_cache in the step.
"""
import numpy as np
import torch
from torch import nn

import blind


class Decoder(nn.Module):
    def __init__(self, width, layers, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, max(1, width // 128), 4 * width, dropout=0.0, batch_first=True)
            for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1).float(), labels.flatten())


class Trainer:
    """The part of a trainer that small projects copy: batches, one training step, a log line now and then."""

    def __init__(self, model, batches, device, empty_cache, logging_steps=50):
        self.model, self.batches, self.device = model, batches, device
        self.empty_cache, self.logging_steps = empty_cache, logging_steps
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.total, self.logs = torch.zeros((), device=device), []

    def prepare_inputs(self, batch):
        return {key: value.to(self.device, non_blocking=True) for key, value in batch.items()}

    def compute_loss(self, inputs):
        return self.model(**inputs)

    def training_step(self, batch):
        self.model.train()
        inputs = self.prepare_inputs(batch)
        loss = self.compute_loss(inputs)
        loss.backward()
        detached = loss.detach()
        del inputs, loss
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.empty_cache and torch.cuda.is_available():
            torch.cuda.empty_cache()
        return detached

    def train_one(self, i):
        self.total += self.training_step(self.batches[i % len(self.batches)])
        if (i + 1) % self.logging_steps == 0:
            self.logs.append({"loss": self.total.item() / self.logging_steps, "step": i + 1})
            self.total.zero_()


def collate(rng, rows, longest, vocabulary, pin):
    """A padded batch; its length is that of its longest member."""
    length = int(rng.integers(longest // 2, longest + 1))
    ids = torch.from_numpy(rng.integers(0, vocabulary, size=(rows, length + 1)))
    batch = {"input_ids": ids[:, :-1].contiguous(), "labels": ids[:, 1:].contiguous()}
    return {key: value.pin_memory() for key, value in batch.items()} if pin else batch


def main():
    loop = blind.Loop("cache_emptied_by_the_trainer", "allocation", steps=160)
    device = loop.device()
    torch.manual_seed(0)
    rng = np.random.default_rng(5)
    width, vocabulary, longest = loop.size(2048, 64), loop.size(8192, 64), loop.size(2048, 16)
    rows = loop.size(6 if loop.variant == "healthy" else 4, 2)
    model = Decoder(width, loop.size(8, 2), vocabulary).to(device, loop.size(torch.bfloat16, torch.float32))
    batches = [collate(rng, rows, longest, vocabulary, device.type == "cuda") for _ in range(32)]
    trainer = Trainer(model, batches, device, empty_cache=loop.planted)
    loop.run(trainer.train_one, blind.wait_for(device))


if __name__ == "__main__":
    main()
