# SPDX-License-Identifier: Apache-2.0
"""VideoPose3D learns to lift joints from two to three dimensions: convolutions over 243 frames, 1024 windows a step.

An engineer sees the process that trains cut each of 1024 windows out of a film in Python, mirror half of them with
lists of indices, and turn the eight million doubles that come of it into floats, before anything is sent to the GPU:
some fifty milliseconds, and the GPU needs fifteen. The repair cuts all windows by one table of indices, out of films
that are floats already. In both variants the films are shorter and made up, and nothing is tested between epochs, an
option of the script.
"""
CAUSE = "host"
LINE = "run.py:401"
LINES = ["common/generators.py:118", "common/generators.py:123", "common/generators.py:140"]
REPOSITORY = "facebookresearch/VideoPose3D"
COMMIT = "1afb1ca0f1237776518469876342fc8669d3f6a9"
COMMAND = ["run.py", "-e", "80", "-k", "cpn_ft_h36m_dbb", "-arc", "3,3,3,3,3", "--no-eval"]
EDITS = []
REPAIR = [
    ("common/generators.py", 53, 55, """\
        def join(films):
            lengths = np.array([len(film) for film in films])
            return np.concatenate(films).astype('float32'), np.cumsum(lengths) - lengths, lengths

        if poses_3d is not None:
            self.batch_3d, self.joined_3d = None, join(poses_3d)
        self.batch_2d, self.joined_2d = None, join(poses_2d)
        self.chunk_length = chunk_length
"""),
    ("common/generators.py", 99, 98, """\
    def windows(self, joined, films, first, length, flip, left, right):
        frames, starts, lengths = joined
        at = np.clip(first[:, None] + np.arange(length), 0, lengths[films][:, None] - 1)
        batch = frames[starts[films][:, None] + at]
        mirrored = batch[flip]
        mirrored[..., 0] *= -1
        mirrored[:, :, left + right] = mirrored[:, :, right + left]
        batch[flip] = mirrored
        return batch

"""),
    ("common/generators.py", 105, 149, """\
                films, start_3d, _, flip = np.array(chunks).T
                flip = flip.astype(bool)
                self.batch_2d = self.windows(self.joined_2d, films, start_3d - self.pad - self.causal_shift,
                                             self.chunk_length + 2*self.pad, flip, self.kps_left, self.kps_right)
                if self.poses_3d is not None:
                    self.batch_3d = self.windows(self.joined_3d, films, start_3d, self.chunk_length, flip,
                                                 self.joints_left, self.joints_right)
                if self.cameras is not None:
                    self.batch_cam = np.array(self.cameras)[films]
                    self.batch_cam[flip, 2] *= -1
                    self.batch_cam[flip, 7] *= -1
"""),
]
STEPS = 160
WARM_UP = 10
BEFORE = 3
