# SPDX-License-Identifier: Apache-2.0
"""https://github.com/JonghwanMun/TextguidedATT/issues/4 (also huggingface/transformers#28)

I extract features of all images of a large set, one pass through the network without training. It takes far longer than
it should, and feeding the images in batches hardly helped.

Cause: after each batch the features of every image are written to a file of its own, an archive with a few small
members, one after the other, and the next batch is launched only after the last of them.
Line: features_saved_to_a_file_for_each_image.py:save_each
Remedy: one file for all; the features of a batch are appended to it as they are, while the GPU computes the next batch.
"""
import os
import tempfile
import time

import torch

import blind
import training


def save_each(folder, names, features, boxes):
    for name, feature, box in zip(names, features, boxes):
        found = {"name": name, "features": feature.clone(), "boxes": box.clone()}
        torch.save(found, os.path.join(folder, name + ".pt"))


def append(file, features):
    file.write(memoryview(features.view(torch.uint8).numpy()).cast("B"))


def main():
    loop = blind.Loop("features_saved_to_a_file_for_each_image", "disk", steps=200)
    device = loop.device()
    if loop.variant == "healthy":
        return training.run_full_steps(loop, device)
    images, regions, width = loop.size(64, 4), loop.size(72, 4), loop.size(4096, 16)
    torch.manual_seed(0)
    model, _ = training.make_wide(width, width, device, groups=loop.size(10, 1))
    with torch.device(device):
        patches = [torch.randn(images * regions, width).to(torch.bfloat16) for _ in range(4)]
    boxes = torch.rand(images, regions, 4)
    host = [torch.empty(images, regions, 64, dtype=torch.bfloat16, pin_memory=device.type == "cuda") for _ in range(2)]
    wait = blind.wait_for(device)
    folder = tempfile.TemporaryDirectory()
    file = open(os.path.join(folder.name, "features.bin"), "wb")

    @torch.inference_mode()
    def launch(i):
        found = model(patches[i % 4]).view(images, regions, -1)
        host[i % 2].copy_(found, non_blocking=True)
        if device.type != "cuda":
            return None
        done = torch.cuda.Event()
        done.record()
        return done

    waiting = None

    def step(i):
        nonlocal waiting
        if loop.planted:
            launch(i)
            wait()
            begin = time.perf_counter()
            save_each(folder.name, [f"{i * images + n:06d}" for n in range(images)], host[i % 2], boxes)
            loop.planted_ms.append(1e3 * (time.perf_counter() - begin))
            return
        before, waiting = waiting, launch(i)
        if i:
            if before:
                before.synchronize()
            append(file, host[(i - 1) % 2])

    loop.run(step, wait)
    if not loop.planted:
        append(file, host[(loop.warm_up + loop.steps - 1) % 2])
    file.close()
    folder.cleanup()


if __name__ == "__main__":
    main()
