# SPDX-License-Identifier: Apache-2.0
"""Words from a small LSTM language model (two layers of width 200, 33 278 words), one after another; a step is a word.

An engineer sees the GPU compute for a tenth of a millisecond and then wait for the CPU, which fetches 33 278 weights
and draws from them by itself, a random number and a division for each. The repair draws on the GPU, so that only the
word's number is fetched. In both variants the model is random and not read from a file, the text is made of the
repository's own, and the number of words is larger.
"""
CAUSE = "host"
LINE = "word_language_model/generate.py:88"
REPOSITORY = "pytorch/examples"
COMMIT = "77f55b912142e11fcfdf5b530231fb9c52f181e8"
FOLDER = "word_language_model"
COMMAND = ["generate.py", "--accel", "--words", "1000000"]
EDITS = [
    ("word_language_model/generate.py", 45, 66, """\
corpus = data.Corpus(args.data)
model = RNNModel("LSTM", len(corpus.dictionary), 200, 200, 2).to(device)
model.eval()
"""),
    ("word_language_model/generate.py", 68, 68, ""),
    ("word_language_model/generate.py", 94, 93, "            step_done()"),
]
REPAIR = [("word_language_model/generate.py", 87, 89, """\
                word_weights = output.squeeze().div(args.temperature).exp()
                word_idx = torch.multinomial(word_weights, 1)[0]
                input.fill_(word_idx)
""")]
STEPS = 3000
WARM_UP = 50
BEFORE = 5
