# SPDX-License-Identifier: Apache-2.0
"""mamba-minimal writes text with a Mamba of 370 M weights, as its notebook does: a step is a word and all before it.

An engineer sees 48 layers, and in each a loop in Python over the words with six operations on 32 thousand numbers: the
GPU is done with each before the next is launched, ten thousand launches a word. The repair launches one operation in
the loop and multiplies all states by what reads them after it. Keeping the state between words would spare more, but is
another program. In both variants the weights are random, the prompt is five words, and after fifty words it begins
again.
"""
CAUSE = "launch"
LINE = "model.py:318"
LINES = ["model.py:319", "model.py:270", "model.py:86"]
REPOSITORY = "johnma2006/mamba-minimal"
COMMIT = "03de542a36d873f6e6c4057ad687278cc6ae944d"
COMMAND = ["model.py"]
EDITS = [
    ("model.py", 342, 341, """\


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Mamba(ModelArgs(d_model=1024, n_layer=48, vocab_size=50280)).cuda().eval()
    while True:
        input_ids = torch.randint(50000, (1, 5), device="cuda")
        for token_n in range(50):
            with torch.no_grad():
                probs = F.softmax(model(input_ids)[:, -1], dim=-1)
                (values, indices) = torch.topk(probs, k=40)
                probs[probs < values[:, -1, None]] = 0
                probs = probs / probs.sum(axis=1, keepdims=True)
                input_ids = torch.cat([input_ids, torch.multinomial(probs, num_samples=1)], dim=1)
            step_done()
"""),
]
REPAIR = [("model.py", 316, 321, """\
        states = []
        for a, bu in zip(deltaA.unbind(1), deltaB_u.unbind(1)):
            x = torch.addcmul(bu, a, x)
            states.append(x)
        y = einsum(torch.stack(states, dim=1), C, 'b l d_in n, b l n -> b l d_in')
""")]
STEPS = 100
WARM_UP = 48
BEFORE = 2
