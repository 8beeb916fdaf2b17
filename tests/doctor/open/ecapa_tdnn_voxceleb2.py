# SPDX-License-Identifier: Apache-2.0
"""ECAPA-TDNN learns to tell 5994 speakers apart: 400 pieces of two seconds a step, each with an echo or noise of its own.

An engineer sees four processes read an utterance, up to nine noises, or an echo that is folded in, two to three
milliseconds a piece, a quarter of a second for a batch, and the GPU done with the last batch in less than half of that.
The repair gives the loader fourteen processes. The other repair runs the network under bf16 autocast. In both variants
the sounds are made up, in the lengths of VoxCeleb2, MUSAN and simulated echoes, SciPy reads them, and the transform of
a package that may be missing is written out.
"""
CAUSE = "input"
LINE = "trainECAPAModel.py:47"
LINES = ["ECAPAModel.py:29"]
REPOSITORY = "TaoRuijie/ECAPA-TDNN"
COMMIT = "4904fda6c5da208998321e3ea75e24320bab8aad"
COMMAND = ["trainECAPAModel.py", "--train_list", "sounds/train_list.txt", "--train_path", "sounds/wav",
           "--musan_path", "sounds/musan_split", "--rir_path", "sounds/simulated_rirs"]
EDITS = [
    ("dataLoader.py", 5, 6, '''\
import glob, numpy, os, random, torch
from scipy import signal
from scipy.io import wavfile

class soundfile:
	"""Reads sound of 16 bits as the package of that name does."""
	@staticmethod
	def read(file):
		rate, sound = wavfile.read(file)
		return sound / 32768, rate
'''),
    ("dataLoader.py", 69, 69, "		rir         = numpy.expand_dims(rir.astype(float),0)"),
    ("ECAPAModel.py", 5, 5, "import torch, sys, os, tqdm, numpy, time, pickle"),
    ("model.py", 10, 10, '''\
import math, torch
'''),
    ("model.py", 132, 131, '''\
class MelSpectrogram(nn.Module):
    """Power of 80 bands on the mel scale, as torchaudio's transform of that name."""

    def __init__(self, sample_rate, n_fft, win_length, hop_length, f_min, f_max, window_fn, n_mels):
        super().__init__()
        self.n_fft, self.win_length, self.hop_length = n_fft, win_length, hop_length
        self.register_buffer('window', window_fn(win_length))
        mel = lambda f: 2595 * math.log10(1 + f / 700)
        corners = 700 * (10 ** (torch.linspace(mel(f_min), mel(f_max), n_mels + 2) / 2595) - 1)
        slopes = corners - torch.linspace(0, sample_rate // 2, n_fft // 2 + 1)[:, None]
        widths = corners.diff()
        rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
        self.register_buffer('bands', torch.minimum(rising, falling).clamp(min=0))

    def forward(self, x):
        x = torch.stft(x, self.n_fft, self.hop_length, self.win_length, self.window, return_complex=True).abs() ** 2
        return (x.transpose(1, 2) @ self.bands).transpose(1, 2)

'''),
    ("model.py", 140, 140, "            MelSpectrogram(sample_rate=16000, n_fft=512, win_length=400, hop_length=160, \\"),
]
REPAIR = [("trainECAPAModel.py", 15, 15,
           "parser.add_argument('--n_cpu',      type=int,   default=14,      help='Number of loader threads')")]
OTHER_REPAIRS = {"precision": [("ECAPAModel.py", 32, 33, """\
			with torch.autocast("cuda", dtype=torch.bfloat16):
				speaker_embedding = self.speaker_encoder.forward(data.cuda(), aug = True)
			nloss, prec       = self.speaker_loss.forward(speaker_embedding.float(), labels)
""")]}
STEPS = 60
WARM_UP = 10
BEFORE = 3
