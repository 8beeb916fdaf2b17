# SPDX-License-Identifier: Apache-2.0
"""A sequence-to-sequence LSTM in JAX and Flax learns to add; each batch of 128 sums is made up in Python.

An engineer sees the GPU wait for the next batch: every sum is turned into characters, padded and one-hot encoded by
several NumPy calls of its own. The repair fills one array of indices for the batch and one-hot encodes it at once; the
numbers are the same. In both variants the summary writer, a package of its own, is left out.
"""
CAUSE = "host"
LINE = "examples/seq2seq/input_pipeline.py:110"
REPOSITORY = "google/flax"
COMMIT = "18f8f311c275d57f46d95e41b15aa97b454754c0"
FOLDER = "examples/seq2seq"
COMMAND = ["train.py", "--decode_frequency=100000"]
EDITS = [
    ("examples/seq2seq/train.py", 26, 26, ""),
    ("examples/seq2seq/train.py", 214, 214, ""),
    ("examples/seq2seq/train.py", 218, 217, "    step_done(metrics)"),
    ("examples/seq2seq/train.py", 219, 219, ""),
]
REPAIR = [("examples/seq2seq/input_pipeline.py", 102, 110, """\
    tokens = np.full((len(batch_inputs), max_len), self.pad_id)
    for row, text in zip(tokens, batch_inputs):
      row[:len(text) + 1] = [self._char_indices[char] for char in text] + [self.eos_id]
    return np.eye(self.vocab_size, dtype=np.float32)[tokens]
""")]
STEPS = 400
