# SPDX-License-Identifier: Apache-2.0
"""A character model: two GRU layers of width 100, 100 pieces of 200 characters a step, one character after another.

An engineer sees the GPU wait while Python makes the next batch: each of its 40 000 characters is looked up in a string
and stored into a tensor by an assignment of its own, which takes longer than launching all 200 time steps. The repair
encodes the whole text once and copies slices. In both variants the text is made up and is not transliterated, which
needs a package of its own, a piece never ends behind the text, and the loss is read in today's way.
"""
CAUSE = "host"
LINE = "train.py:43"
REPOSITORY = "spro/char-rnn.pytorch"
COMMIT = "282bcb6b15ab3929d6a588b455cfc0f19f32add4"
COMMAND = ["train.py", "shakespeare.txt", "--cuda", "--n_epochs=100000", "--print_every=100000"]
EDITS = [
    ("helpers.py", 3, 3, ""),
    ("helpers.py", 16, 16, "    file = open(filename).read()"),
    ("train.py", 40, 40, "        start_index = random.randint(0, file_len - chunk_len - 1)"),
    ("train.py", 66, 66, "    return loss.item() / args.chunk_len"),
]
REPAIR = [
    ("train.py", 35, 35, "codes = torch.tensor([all_characters.index(c) for c in file])\n\n"),
    ("train.py", 42, 44, "        inp[bi] = codes[start_index:end_index - 1]\n"
                         "        target[bi] = codes[start_index + 1:end_index]"),
]
STEPS = 25
WARM_UP = 3
