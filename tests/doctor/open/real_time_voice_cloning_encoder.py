# SPDX-License-Identifier: Apache-2.0
"""The speaker encoder of Real-Time-Voice-Cloning: three LSTM layers hear 640 pieces of 1.6 seconds a step, Adam.

An engineer sees the GPU wait while the CPU does the loss: for each of 64 speakers some small operations forwards and
backwards over 640 embeddings, and then an error rate from 40 960 sorted similarities; with the LSTM's few milliseconds
nothing overlaps, because embeddings are fetched and a profiler of its own waits for the GPU. The repair computes the
similarities at once, as one product, and on the GPU, which also makes their two parameters leaves. The other repair
gives the loader, which reads 640 files a batch, twelve processes. In both variants the spectrograms are made up, a
function of scikit-learn is written out, a type that NumPy no longer has is replaced, and nothing is drawn or saved.
"""
CAUSE = "host"
LINE = "encoder/model.py:91"
LINES = ["encoder/train.py:82", "encoder/train.py:35", "encoder/train.py:88"]
REPOSITORY = "CorentinJ/Real-Time-Voice-Cloning"
COMMIT = "865eba8826bb6d76721a9d828a546724779c23ab"
COMMAND = ["encoder_train.py", "my_run", "SV2TTS/encoder", "--umap_every", "0", "--save_every", "0",
           "--backup_every", "0", "--no_visdom", "--force_restart"]
EDITS = [
    ("encoder/train.py", 8, 8, '''\
class Visualizations:
    """Nothing is drawn; losses and error rates are kept, as they are for a drawing."""

    def __init__(self, *_, **__):
        self.losses, self.eers = [], []

    def update(self, loss, eer, step):
        self.losses.append(loss)
        self.eers.append(eer)

    def log_dataset(self, dataset):
        pass

    def log_params(self):
        pass

    def log_implementation(self, params):
        pass


'''),
    ("encoder/model.py", 4, 4, ""),
    ("encoder/model.py", 10, 10, '''\


def roc_curve(labels, scores):
    """Rates of false and true alarms at every threshold, without those that lie on a line between two others."""
    order = np.argsort(-scores, kind="mergesort")
    labels, scores = labels[order], scores[order]
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    right = np.cumsum(labels)[ends]
    wrong = 1 + ends - right
    if len(ends) > 2:
        bends = np.concatenate([[True], (np.diff(wrong, 2) != 0) | (np.diff(right, 2) != 0), [True]])
        right, wrong, ends = right[bends], wrong[bends], ends[bends]
    right, wrong = np.append(0, right), np.append(0, wrong)
    return wrong / wrong[-1], right / right[-1], np.append(np.inf, scores[ends])


'''),
    ("encoder/model.py", 88, 88, "        mask_matrix = 1 - np.eye(speakers_per_batch, dtype=int)"),
    ("encoder/model.py", 127, 127, "            inv_argmax = lambda i: np.eye(1, speakers_per_batch, i, dtype=int)[0]"),
]
REPAIR = [
    ("encoder/train.py", 35, 35, "    loss_device = device"),
    ("encoder/model.py", 27, 28, """\
        self.similarity_weight = nn.Parameter(torch.tensor([10.], device=loss_device))
        self.similarity_bias = nn.Parameter(torch.tensor([-5.], device=loss_device))
"""),
    ("encoder/model.py", 86, 87, "        sim_matrix = embeds @ centroids_incl.squeeze(1).T"),
    ("encoder/model.py", 89, 92, """\
        own = torch.eye(speakers_per_batch, dtype=torch.bool, device=embeds.device)[:, None]
        sim_matrix = torch.where(own, (embeds * centroids_excl).sum(dim=2, keepdim=True), sim_matrix)
"""),
]
OTHER_REPAIRS = {"input": [("encoder/train.py", 27, 27, "        num_workers=12,")]}
STEPS = 80
WARM_UP = 10
BEFORE = 2
