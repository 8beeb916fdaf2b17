# SPDX-License-Identifier: Apache-2.0
"""HiFi-GAN, large variant, learns to make speech from spectrograms: 16 pieces of 8192 samples a step, two optimizers.

An engineer sees convolutions over samples and over images of periods, by one generator and eight discriminators that
each look at real and made sound twice, all in float32, fill the GPU. The repair runs the five passes under bf16
autocast. The other repairs: losses of discriminators and extremes of the sound are not read at every step, which stops
the launching thread some twenty times; filters of the spectrogram, which a mistaken name makes anew at every call, are
kept. In both variants two functions of an audio package are written out, the recordings are made up, as long as most of
the set's, nothing is logged, and nothing is tested.
"""
CAUSE = "precision"
LINE = "train.py:122"
REPOSITORY = "jik876/hifi-gan"
COMMIT = "4769534d45265d52a904b850da5a622601885777"
COMMAND = ["train.py", "--config", "config_v1.json"]
EDITS = [
    ("train.py", 10, 10, """\
from types import SimpleNamespace


def SummaryWriter(folder):
    return SimpleNamespace(add_scalar=lambda *_: None)


"""),
    ("train.py", 187, 187, "                if False:"),
    ("meldataset.py", 7, 7, ""),
    ("meldataset.py", 9, 9, '''\


def normalize(sound):
    return sound / np.abs(sound).max()


def librosa_mel_fn(rate, n_fft, number, lowest, highest):
    """Triangles of equal area, evenly spaced on Slaney's scale: linear to 1000 Hz, logarithmic above."""
    def to_mel(hz):
        return hz / (200 / 3) if hz < 1000 else 15 + 27 * math.log(hz / 1000) / math.log(6.4)

    mels = np.linspace(to_mel(lowest), to_mel(highest or rate / 2), number + 2)
    hz = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(math.log(6.4) / 27 * (mels - 15)))
    between, ramps = np.diff(hz), np.subtract.outer(hz, np.linspace(0, rate / 2, 1 + n_fft // 2))
    weights = np.zeros((number, 1 + n_fft // 2), dtype=np.float32)
    for i in range(number):
        weights[i] = np.maximum(0, np.minimum(-ramps[i] / between[i], ramps[i + 2] / between[i + 1]))
    return weights * (2 / (hz[2:] - hz[:-2]))[:, np.newaxis]


'''),
    ("meldataset.py", 64, 65, """\
    spec = torch.stft(y, n_fft, hop_length=hop_size, win_length=win_size, window=hann_window[str(y.device)],
                      center=center, pad_mode='reflect', normalized=False, onesided=True, return_complex=True)
    spec = torch.view_as_real(spec)
"""),
]
REPAIR = [
    ("train.py", 122, 122, """\
            bf16 = torch.autocast("cuda", torch.bfloat16)
            with bf16:
                y_g_hat = generator(x)
            y_g_hat = y_g_hat.float()
"""),
    ("train.py", 129, 129, "            with bf16:\n"
                           "                y_df_hat_r, y_df_hat_g, _, _ = mpd(y, y_g_hat.detach())"),
    ("train.py", 133, 133, "            with bf16:\n"
                           "                y_ds_hat_r, y_ds_hat_g, _, _ = msd(y, y_g_hat.detach())"),
    ("train.py", 147, 148, """\
            with bf16:
                y_df_hat_r, y_df_hat_g, fmap_f_r, fmap_f_g = mpd(y, y_g_hat)
                y_ds_hat_r, y_ds_hat_g, fmap_s_r, fmap_s_g = msd(y, y_g_hat)
"""),
]
OTHER_REPAIRS = {
    "sync": [
        ("models.py", 268, 269, "        r_losses.append(r_loss.detach())\n        g_losses.append(g_loss.detach())"),
        ("meldataset.py", 50, 53, ""),
        ("train.py", 160, 160, "                if steps % 100 == 0:"),
    ],
    "host": [
        ("meldataset.py", 56, 56, "    if str(fmax) + '_' + str(y.device) not in mel_basis:"),
    ],
}
STEPS = 80
WARM_UP = 10
BEFORE = 5
EVERY = 2
