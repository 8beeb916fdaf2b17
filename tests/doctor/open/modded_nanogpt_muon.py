# SPDX-License-Identifier: Apache-2.0
"""GPT-2 of 124 M parameters with rotary positions and the optimizer Muon, compiled, bfloat16, on one GPU.

An engineer sees a speed record of its day: large products in bfloat16, fused attention, everything between them compiled
into a few kernels, and an optimizer that is compiled as well, which takes a tenth of a step. Nothing cheap is left;
both variants are the same. The parts for several GPUs are left out, as is the validation; one GPU has two micro-batches
of 32 sequences a step instead of one of 64, which leaves memory for others. The tokens are made up.
"""
CAUSE = "none"
LINE = ""
REPOSITORY = "KellerJordan/modded-nanogpt"
COMMIT = "f411b3d346aa52d3504324ca93c230fd84c6c07f"
FOLDER = "records/track_1_short/2024-10-10_Muon"
COMMAND = ["train_gpt2.py"]
EDITS = [
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 333, 334, """\
    batch_size : int = 64 # batch size, in sequences, across all devices
    device_batch_size : int = 32 # batch size, in sequences, per device
"""),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 349, 352, "ddp_rank, ddp_local_rank, ddp_world_size = 0, 0, 1"),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 369, 369, ""),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 372, 372, ""),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 383, 384, "raw_model = model"),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 422, 424, ""),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 443, 466, ""),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 496, 500, "        loss.backward()"),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 518, 517, "    step_done()"),
]
REPAIR = []
# Written after the first reading, which promised at most 1.33x for graphs: those of the optimizer that the host launches.
REMEDIES = {"graphs": [
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 82, 82, "            lr = self.rate"),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 102, 102, "                p.data.sub_(g * (lr * scale))"),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 391, 391, """\
optimizer2.rate = torch.zeros((), device=device)
optimizers = [optimizer1, optimizer2]
graph = None
"""),
    ("records/track_1_short/2024-10-10_Muon/train_gpt2.py", 504, 508, """\
    optimizer2.rate.fill_(optimizer2.param_groups[0]["lr"])
    optimizer1.step()
    if step == 4:  # the captured step is made by the replay
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            optimizer2.step()
    graph.replay() if graph else optimizer2.step()
    for sched in schedulers:
        sched.step()
    model.zero_grad(set_to_none=False)
"""),
]}
STEPS = 80
WARM_UP = 10
