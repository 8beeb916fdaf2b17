# SPDX-License-Identifier: Apache-2.0
"""https://github.com/NVIDIA-NeMo/Speech/pull/8521 (also NVIDIA-NeMo/Speech#8891, weinman/cnn_lstm_ctc_ocr#31)

Training a recogniser is quick on the big GPU, but validating it is very slow, although the best symbol of each frame
is simply taken and no beam is searched.

Cause: repeated symbols and blanks are dropped by a loop that looks at the symbols on the GPU one by one: each look
waits for the device and copies eight bytes.
Line: frames_read_one_by_one_to_spell_words.py:spell
Remedy: the best symbols of a batch are copied at once, and the loop goes over python integers.
"""
import torch

import blind
import training

LETTERS = "_ abcdefghijklmnopqrstuvwxyz'.,-"


def spell(symbols):
    """What is left of the symbols of each clip without repeats and blanks."""
    texts = []
    for clip in symbols:
        text, last = "", 0
        for symbol in clip:
            symbol = int(symbol)
            if symbol != last and symbol != 0:
                text += LETTERS[symbol]
            last = symbol
        texts.append(text)
    return texts


@torch.no_grad()
def main():
    loop = blind.Loop("frames_read_one_by_one_to_spell_words", "sync", steps=150)
    device = loop.device()
    if loop.variant == "healthy":
        with torch.enable_grad():
            return training.run_full_steps(loop, device)
    torch.manual_seed(0)
    clips, frames, width = loop.size(8, 2), loop.size(256, 12), loop.size(6144, 16)
    with torch.device(device):
        model = training.WideNetwork(width, width, len(LETTERS), groups=loop.size(12, 1)).to(torch.bfloat16)
        batches = torch.randn(4, clips, frames, width).to(torch.bfloat16)
    heard = []

    def step(i):
        symbols = model(batches[i % len(batches)]).argmax(dim=-1)
        heard[:] = spell(symbols if loop.planted else symbols.tolist())

    loop.run(step, blind.wait_for(device))


if __name__ == "__main__":
    main()
