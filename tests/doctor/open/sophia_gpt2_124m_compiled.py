# SPDX-License-Identifier: Apache-2.0
"""Sophia trains GPT-2 of 124 million weights, compiled, in bf16: a step is one of 48 pieces of 8 x 1024 tokens.

An engineer sees attention written out: twelve heads' scores of 1024 x 1024 for eight texts are written to memory,
masked, softened and read again, forwards and backwards in twelve layers. Compiled code joins some of that, yet it
remains about as much time as all products together. The repair asks for the library's fused attention with the same
scale, which never writes the scores. In both variants the tokens are made up, nothing is tested in between, and nothing
is logged elsewhere.
"""
CAUSE = "memory"
LINE = "model.py:65"
LINES = ["model.py:69", "train_sophiag.py:298", "train_sophiag.py:302"]
REPOSITORY = "Liuhong99/Sophia"
COMMIT = "a7e157229b71d58cf995d32854f1be15c265b350"
COMMAND = ["train_sophiag.py", "config/train_gpt2_small_sophiag.py", "--wandb_log=False"]
EDITS = [
    ("train_sophiag.py", 249, 249, "    if False:"),
    ("train_sophiag.py", 303, 302, "            step_done()"),
]
REPAIR = [("model.py", 64, 71, """\
        scale = 1.0 / math.sqrt(k.size(-1))
        if self.scale_attn_by_inverse_layer_idx:
            scale /= float(self.idx_layer + 1)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True,
                                           scale=scale) # (B, nh, T, hs)
""")]
STEPS = 144
WARM_UP = 16
BEFORE = 4
