# SPDX-License-Identifier: Apache-2.0
"""A tiny Transformer (four layers, width 64) learns to make up names, 32 of them a step, read from a text file.

An engineer sees some hundred and fifty operations forward, as many back and an optimizer, all on tensors so small that
every kernel is done in two or three microseconds, before the Python thread has launched the next. The repair captures
the whole step in one CUDA graph and replays it. In both variants no summary is written, and names are neither sampled
nor tested in between.
"""
CAUSE = "launch"
LINE = "makemore.py:680"
REPOSITORY = "karpathy/makemore"
COMMIT = "988aa59e4d8fefa526d06f3b453ad116258398d4"
COMMAND = ["makemore.py", "--device", "cuda"]
EDITS = [
    ("makemore.py", 28, 28, ""),
    ("makemore.py", 626, 626, ""),
    ("makemore.py", 690, 689, "        step_done()"),
    ("makemore.py", 697, 697, "        if False:"),
    ("makemore.py", 712, 712, "        if False:"),
]
REPAIR = [
    ("makemore.py", 662, 662, "    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, "
                              "weight_decay=args.weight_decay,\n"
                              "                                  betas=(0.9, 0.99), eps=1e-8, capturable=True)"),
    ("makemore.py", 679, 685, """\
        def compute():
            logits, loss = model(X0, Y0)
            model.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            return loss.detach()

        if step == 0:
            X0, Y0 = X, Y
            side = torch.cuda.Stream()
        X0.copy_(X)
        Y0.copy_(Y)
        if step < 3:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = compute()
            torch.cuda.current_stream().wait_stream(side)
        else:
            if step == 3:
                model.zero_grad(set_to_none=True)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    loss = compute()
            graph.replay()
"""),
]
STEPS = 1500
BEFORE = 5
