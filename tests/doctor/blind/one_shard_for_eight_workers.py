# SPDX-License-Identifier: Apache-2.0
"""https://github.com/modelscope/ms-swift/issues/4061 (also mosaicml/llm-foundry#639, hiyouga/LlamaFactory#9590)

"Too many dataloader workers: 32 (max is dataset.num_shards=1). Stopping 31 dataloader workers." Where do I set the
number of shards, and can the data not be processed by several workers?

Cause: the streamed data lies in one file, which only one worker can read; the others have nothing to do, and the one
that reads is slower than the GPU.
Line: one_shard_for_eight_workers.py:__iter__ (in the worker)
Remedy: the same records in eight files.
"""
import json
import os
import tempfile

import numpy as np
import torch
from torch import nn

import blind
import training


def write_shards(folder, records, values, shards):
    """Lines of JSON, one for a recording, spread over the files."""
    rng = np.random.default_rng(0)
    paths = [os.path.join(folder, f"part-{k:05}.jsonl") for k in range(shards)]
    files = [open(path, "w") for path in paths]
    for k in range(records):
        wave = rng.standard_normal(values).round(5).tolist()
        print(json.dumps({"id": k, "rate": 16000, "wave": wave}), file=files[k % shards])
    for file in files:
        file.close()
    return paths


class Stream(torch.utils.data.IterableDataset):
    """The recordings of all files, again and again; each worker has files of its own."""

    def __init__(self, paths):
        self.paths = paths

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        mine = self.paths[info.id::info.num_workers]
        while mine:
            for path in mine:
                with open(path) as file:
                    for line in file:
                        wave = np.array(json.loads(line)["wave"], dtype=np.float32)
                        yield torch.from_numpy((wave - wave.mean()) / wave.std())


def main():
    loop = blind.Loop("one_shard_for_eight_workers", "input", steps=220)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    batch, window, windows, width = loop.size(12, 2), loop.size(24, 4), loop.size(512, 4), loop.size(4096, 16)
    with torch.device(device):
        body, _ = training.make_model(loop.size(18, 1), width, device)
        model = nn.Sequential(nn.Linear(window, width), body).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    gaps = training.GpuGaps(loop, device)

    with tempfile.TemporaryDirectory() as folder:
        paths = write_shards(folder, loop.size(96, 8), window * windows, 1 if loop.planted else 8)
        loader = torch.utils.data.DataLoader(Stream(paths), batch_size=batch, num_workers=loop.size(8, 2),
                                             pin_memory=device.type == "cuda")
        batches = iter(loader)

        def step(i):
            waves = next(batches)
            gaps.begin()
            training.train(model, optimizer, waves.to(device, non_blocking=True).view(-1, window).to(torch.bfloat16))
            gaps.finish()

        loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
