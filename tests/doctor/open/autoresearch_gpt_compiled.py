# SPDX-License-Identifier: Apache-2.0
"""autoresearch trains GPT of 8 layers on one GPU, compiled, in bfloat16, with Muon: half a million tokens a step.

An engineer sees a script whose only purpose is to learn much in five minutes: the model and both optimizers are
compiled, attention is fused, weights of one shape are updated together, embeddings are half as long, the collector of
garbage is off, tokens are packed while the GPU computes, and the two waits a step are short beside its third of a
second. Nothing simple gains a tenth. Both variants are the same: PyTorch's attention, over all words before, stands for
a library that is fetched; documents are made of random tokens, as long as real ones; and a step is made of pieces half
as large.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "karpathy/autoresearch"
COMMIT = "228791fb499afffb54b46200aca536f79142f117"
COMMAND = ["train.py"]
EDITS = [
    ("train.py", 20, 24, ""),
    ("train.py", 93, 93, """\
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        y = y.transpose(1, 2)
"""),
    ("train.py", 451, 451, "DEVICE_BATCH_SIZE = 64"),
    ("train.py", 565, 564, "    step_done()"),
    ("prepare.py", 20, 23, ""),
    ("prepare.py", 214, 214, "        self.bos_token_id = 8188"),
    ("prepare.py", 218, 220, "        return cls(None)"),
    ("prepare.py", 223, 223, "        return VOCAB_SIZE"),
    ("prepare.py", 229, 242, "        return [[prepend] + document for document in text]"),
    ("prepare.py", 256, 273, """\
    import random

    chance = random.Random(0)
    documents = [chance.choices(range(8188), k=max(20, int(chance.lognormvariate(6.3, 0.9)))) for _ in range(2048)]
    while True:
        for i in range(0, len(documents), tokenizer_batch_size):
            yield documents[i:i+tokenizer_batch_size], 1
"""),
]
REPAIR = []
STEPS = 24
WARM_UP = 4
BEFORE = 2
