# SPDX-License-Identifier: Apache-2.0
"""nanochat's base training at depth 12, compiled, in bf16: a step is one of eight pieces of 32 x 2048 tokens.

An engineer sees what a well-kept trainer looks like: wide batches, all of the network in compiled code, flash attention
of the library with full context, as the script recommends where a faster package is missing, optimizers compiled too,
and a batch that is brought while the GPU works. The wait after every eight pieces, where the loss is printed, is a
thousandth of them. Nothing simple gains a twentieth. Both variants are the same: the tokens are made up, and packages
for evaluation are not needed.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "karpathy/nanochat"
COMMIT = "92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"
COMMAND = ["scripts/base_train.py", "--depth=12", "--window-pattern=L", "--eval-every=-1", "--core-metric-every=-1",
           "--sample-every=-1", "--save-every=-1"]
EDITS = [
    ("scripts/base_train.py", 24, 24, ""),
    ("scripts/base_train.py", 29, 29, ""),
    ("scripts/base_train.py", 31, 34, ""),
    ("scripts/base_train.py", 36, 36, ""),
    ("scripts/base_train.py", 121, 123, "vocab_size = 32768"),
    ("scripts/base_train.py", 331, 331, '''\
def made_up(B, T):
    """Tokens made up, brought to the GPU as the script's own loader does."""
    cpu_buffer = torch.empty(2, B, T, dtype=torch.long, pin_memory=device_type == "cuda")
    gpu_buffer = torch.empty(2, B, T, dtype=torch.long, device=device)
    while True:
        rows = torch.randint(vocab_size, (B, T + 1))
        cpu_buffer[0].copy_(rows[:, :-1])
        cpu_buffer[1].copy_(rows[:, 1:])
        gpu_buffer.copy_(cpu_buffer, non_blocking=True)
        yield gpu_buffer[0], gpu_buffer[1], {"pq_idx": 0, "rg_idx": 0, "epoch": 1}


train_loader = made_up(args.device_batch_size, args.max_seq_len)
'''),
    ("scripts/base_train.py", 519, 518, "        step_done()"),
]
REPAIR = []
STEPS = 64
WARM_UP = 8
BEFORE = 16
