# SPDX-License-Identifier: Apache-2.0
"""An LSTM of two layers over words (vocabulary 33 k, 35 x 20 words a step), updated without an optimizer.

An engineer sees that every step ends by reading the loss from the GPU, so the launching thread cannot run ahead: the
GPU idles while each next step is launched. The repair adds the losses up on the GPU and reads the sum only when it is
logged, every 200 steps. The text is the repository's validation and test text, repeated and with made-up words.
"""
CAUSE = "sync"
LINE = "word_language_model/main.py:196"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "word_language_model"
COMMAND = ["main.py", "--accel"]
EDITS = [("word_language_model/main.py", 207, 206, "        step_done()")]
REPAIR = [
    ("word_language_model/main.py", 196, 196, "        total_loss += loss.detach()"),
    ("word_language_model/main.py", 199, 199, "            cur_loss = float(total_loss) / args.log_interval"),
]
REMEDIES = {"graphs": [("word_language_model/main.py", 175, 194, """\
        def compute(data, targets, hidden):
            model.zero_grad(set_to_none=False)
            output, after = model(data, hidden)
            loss = criterion(output, targets)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
            for p in model.parameters():
                p.data.add_(p.grad, alpha=-lr)
            return loss.detach(), after

        hidden = repackage_hidden(hidden)
        if batch < 5:
            loss, hidden = compute(data, targets, hidden)
        else:
            if batch == 5:
                static = (data.clone(), targets.clone(), tuple(h.clone() for h in hidden))
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    loss, after = compute(*static)
            static[0].copy_(data)
            static[1].copy_(targets)
            graph.replay()
            for to, h in zip(static[2], after):
                to.copy_(h)
            hidden = static[2]
""")]}
STEPS = 800
