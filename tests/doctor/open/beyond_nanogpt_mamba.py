# SPDX-License-Identifier: Apache-2.0
"""Beyond-nanoGPT's Mamba learns stories letter by letter: four layers, 128 texts of 257 letters a step.

An engineer sees a scan in Python that takes one letter at a time out of three tensors of 67 million numbers. Forwards
that is only many launches. Backwards each taking out makes a tensor of zeros as large as the whole, writes one letter's
part into it, and adds it to the sum of those before: two gigabytes for each of 257 letters in each of four layers, half
a second of nothing but memory. The repair takes the tensors apart once, so that the way back puts them together once.
In both variants the stories are made up, and nothing is logged elsewhere.
"""
CAUSE = "memory"
LINE = "architectures/train_mamba.py:312"
LINES = ["architectures/train_mamba.py:314", "architectures/train_mamba.py:277", "architectures/train_mamba.py:422"]
REPOSITORY = "tanishqkumar/beyond-nanogpt"
COMMIT = "cb1d7bc12e78ddb4e23d5565fd1fd147bc374d0d"
FOLDER = "architectures"
COMMAND = ["train_mamba.py"]
EDITS = [
    ("architectures/train_mamba.py", 176, 177, ""),
    ("architectures/train_mamba.py", 356, 356,
     '    dataset = [{"text": text} for text in open("stories.txt").read().split("\\n\\n")] * 10'),
    ("architectures/train_mamba.py", 431, 430, "        step_done()"),
]
REPAIR = [("architectures/train_mamba.py", 311, 314, """\
        for A_t, Bu_t, C_t in zip(A.unbind(1), Bu.unbind(1), C.unbind(1)):
            self.state = A_t * self.state + Bu_t
            y_t = torch.einsum('b d n, b d n -> b d', C_t, self.state)
""")]
STEPS = 16
WARM_UP = 2
