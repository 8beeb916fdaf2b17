# SPDX-License-Identifier: Apache-2.0
"""The GPT of a well-known lecture, ten million weights, learns to write as Shakespeare did: 64 x 256 letters a step, AdamW.

An engineer sees a network kept as simple as it can be explained: six layers of six heads, each head with its own small
products and its own 256 x 256 attention, all in float32. The GPU is busy with products that do not use its tensor cores,
some 25 milliseconds a step; Python launches the two thousand operations in half of that. The repair allows TF32 for
them, one line. The other repair hands each head's attention to the library's fused one. In both variants nothing is
tested in between.
"""
CAUSE = "precision"
LINE = "gpt.py:217"
LINES = ["gpt.py:119", "gpt.py:89", "gpt.py:102"]
REPOSITORY = "karpathy/ng-video-lecture"
COMMIT = "52201428ed7b46804849dea0b3ccf0de9df1a5c3"
COMMAND = ["gpt.py"]
EDITS = [("gpt.py", 208, 211, "")]
REPAIR = [("gpt.py", 18, 17, "torch.set_float32_matmul_precision('high')")]
OTHER_REPAIRS = {"memory": [("gpt.py", 82, 89, """\
        v = self.value(x) # (B,T,hs)
        out = F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1),
                                             dropout_p=dropout if self.training else 0.0, is_causal=True).squeeze(1)
""")]}
STEPS = 200
