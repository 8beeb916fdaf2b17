# SPDX-License-Identifier: Apache-2.0
"""Makes the point clouds and meshes among the data that open_data.py makes."""
import json
import pickle

import numpy as np


def clouds(folder, random):
    """Four clouds of each kind as text, points and labels, and a list with as many entries as the real set has."""
    kinds = ("Airplane Bag Cap Car Chair Earphone Guitar Knife Lamp Laptop Motorbike Mug Pistol Rocket Skateboard "
             "Table").split()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "synsetoffset2category.txt").write_text("".join(f"{kind}\t{i:08}\n" for i, kind in enumerate(kinds)))
    names = []
    for i in range(len(kinds)):
        for sub in ("points", "points_label"):
            (folder / f"{i:08}" / sub).mkdir(parents=True, exist_ok=True)
        for j in range(4):
            number = random.integers(2450, 2750)
            np.savetxt(folder / f"{i:08}/points/{j}.pts", random.random((number, 3)) - 0.5, fmt="%.5f")
            np.savetxt(folder / f"{i:08}/points_label/{j}.seg", random.integers(1, 3, number), fmt="%d")
            names.append(f"shape_data/{i:08}/{j}")
    (folder / "train_test_split").mkdir(exist_ok=True)
    for split, number in (("train", 12137), ("test", 2874)):
        listed = [names[i] for i in random.integers(len(names), size=number)]
        (folder / f"train_test_split/shuffled_{split}_file_list.json").write_text(json.dumps(listed))


def shapes(folder, random):
    """ModelNet40's lists, and its clouds after processing: 64 of 1024 points with normals, over and over."""
    folder.mkdir(parents=True, exist_ok=True)
    kinds = [f"kind{i}" for i in range(40)]
    (folder / "modelnet40_shape_names.txt").write_text("\n".join(kinds) + "\n")
    some = list(random.normal(size=(64, 1024, 6)).astype(np.float32))
    for split, number in (("train", 9843), ("test", 2468)):
        (folder / f"modelnet40_{split}.txt").write_text("".join(f"kind{i % 40}_{i:04}\n" for i in range(number)))
        labels = [np.array([i], dtype=np.int32) for i in range(40)]
        processed = [[some[i % 64] for i in range(number)], [labels[i % 40] for i in range(number)]]
        (folder / f"modelnet40_{split}_1024pts.dat").write_bytes(pickle.dumps(processed))


def meshes(folder, random):
    """Closed surfaces of 252 vertices and 750 edges, sixteen of each of thirty kinds: rough balls, each kind in its form.

    Each is the hull of points on a ball, moved afterwards. Mean and deviation of the features need not be exact.
    """
    from scipy.spatial import ConvexHull

    folder.mkdir(parents=True, exist_ok=True)
    hulls = []
    for _ in range(16):
        points = random.normal(size=(252, 3))
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        for _ in range(20):  # away from one another, as a scanned surface's are
            apart = points[:, None] - points[None]
            points += 0.1 * (apart / (0.05 + (apart**2).sum(-1, keepdims=True)) ** 1.5).mean(axis=1)
            points /= np.linalg.norm(points, axis=1, keepdims=True)
        faces = ConvexHull(points).simplices
        corners = points[faces]
        inward = (np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]) * corners[:, 0]).sum(1) < 0
        faces[inward] = faces[inward, ::-1]
        hulls.append((points, faces))
    for kind in range(30):
        (folder / f"kind{kind:02}/train").mkdir(parents=True, exist_ok=True)
        form = random.uniform(0.5, 1.5, 3)
        for i, (points, faces) in enumerate(hulls):
            lines = ["v %f %f %f" % tuple(point) for point in points * form]
            lines += ["f %d %d %d" % tuple(face) for face in faces + 1]
            (folder / f"kind{kind:02}/train/T{i}.obj").write_text("\n".join(lines) + "\n")
    statistics = {"mean": np.array([[2.8], [1.0], [1.0], [1.6], [1.6]]),
                  "std": np.array([[0.2], [0.3], [0.3], [0.5], [0.5]]), "ninput_channels": 5}
    (folder / "mean_std_cache.p").write_bytes(pickle.dumps(statistics))


def distances(folder, random):
    """Half a million points near a surface and how far each is from it, those outside and those inside, sixteen times."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(16):
        number = random.integers(220000, 280000)
        points = random.uniform(-1, 1, (500000, 4)).astype(np.float32)
        points[:, 3] = np.abs(points[:, 3]) / 10
        points[number:, 3] *= -1
        np.savez(folder / f"{i:02}.npz", pos=points[:number], neg=points[number:])
