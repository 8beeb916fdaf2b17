#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the data that the checkouts under DIR need and that cannot be fetched: open_data.py DIR

Sizes and types are those of the data it stands for; what it says does not matter for how long a step takes. Needs
NumPy, SciPy, Pillow, PyTorch, tokenizers and transformers, and no GPU.
"""
import gzip
import json
import pathlib
import pickle
import struct
import sys

import numpy as np

import open_shapes


def nanogpt(root, random):
    for dataset, tokens, vocabulary in (("shakespeare_char", 1003854, 65), ("openwebtext", 1000000, 50257)):
        folder = root / "data" / dataset
        folder.mkdir(parents=True, exist_ok=True)
        for split in ("train", "val"):
            random.integers(vocabulary, size=tokens, dtype=np.uint16).tofile(folder / f"{split}.bin")
    (root / "data/shakespeare_char/meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


def words(root, random):
    """Validation and test text of the repository until there are a million words, and its number of different words."""
    folder = root / "word_language_model/data/wikitext-2"
    lines = [line for split in ("valid", "test") for line in (folder / f"{split}.txt").read_text("utf-8").splitlines()]
    text = "\n".join(lines * 3)
    missing = 33278 - len(set(text.split())) - 1  # one is the end of a line
    (folder / "train.txt").write_text(text + "\n" + " ".join(f"made-up-{i}" for i in range(missing)) + "\n", "utf-8")


def digits(folder, random):
    """MNIST's files: a header of big-endian numbers, then bytes. Sixty pictures, over and over."""
    folder.mkdir(parents=True, exist_ok=True)
    some = random.integers(256, size=(60, 28, 28), dtype=np.uint8)
    for prefix, number in (("train", 60000), ("t10k", 10000)):
        pictures = np.tile(some, (number // 60 + 1, 1, 1))[:number]
        labels = (np.arange(number) % 10).astype(np.uint8)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 2051, number, 28, 28) + pictures.tobytes())
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 2049, number) + labels.tobytes())


def enwik8(root, random):
    folder = root / "examples/enwik8_deepspeed/data"
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(folder / "enwik8.gz", "wb") as file:
        file.write(random.integers(32, 127, size=10**6, dtype=np.uint8).tobytes())


def radiance(root, random):
    (root / "cache").mkdir(exist_ok=True)
    images = np.repeat(random.random((106, 10, 10, 3), dtype=np.float32), 10, axis=1).repeat(10, axis=2)
    poses = np.tile(np.eye(4, dtype=np.float32), (106, 1, 1))
    poses[:, :3, 3] = random.normal(size=(106, 3))
    np.savez_compressed(root / "cache/tiny_nerf_data.npz", images=images, poses=poses, focal=np.float64(138.9))


def instructions(root, random):
    """Texts as long as alpaca_data.json's, a tokenizer of whole words, and OPT's configuration without weights."""
    import tokenizers
    import transformers

    vocabulary = ["<s>", "<pad>", "</s>", "<unk>"] + [f"w{i}" for i in range(50261)]

    def say(shortest, longest):
        return " ".join(f"w{i}" for i in random.integers(50261, size=random.integers(shortest, longest)))

    texts = [{"instruction": say(5, 20), "input": say(3, 20) if i % 5 < 2 else "", "output": say(10, 110)}
             for i in range(1600)]
    (root / "alpaca_data.json").write_text(json.dumps(texts), "utf-8")
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>",
    ).save_pretrained(root / "opt-125m")
    transformers.OPTConfig().save_pretrained(root / "opt-125m")  # its defaults are those of 125 M parameters


def cifar(root, random):
    import torch

    (root / "cifar10").mkdir(exist_ok=True)
    some = random.integers(256, size=(500, 32, 32, 3), dtype=np.uint8)
    for split, number in (("train", 50000), ("test", 10000)):
        images = torch.from_numpy(np.tile(some, (number // 500, 1, 1, 1)))
        labels = torch.arange(number) % 500 % 10
        classes = [str(i) for i in range(10)]
        torch.save({"images": images, "labels": labels, "classes": classes}, root / "cifar10" / f"{split}.pt")


def second_set(repositories, random):
    """A text for char-rnn.pytorch, digits, a configuration of Llama without weights, photographs with masks."""
    import torch
    from PIL import Image

    words = ["".join(chr(97 + c) for c in random.integers(26, size=random.integers(2, 10))) for _ in range(3000)]
    lines = [" ".join(words[i] for i in random.integers(3000, size=8)) for _ in range(22000)]
    (repositories / "spro+char-rnn.pytorch/shakespeare.txt").write_text("\n".join(lines), "utf-8")
    digits(repositories / "Blealtan+efficient-kan/data/MNIST/raw", random)
    (repositories / "karpathy+llama2.c/out").mkdir(exist_ok=True)
    sizes = {"dim": 288, "n_layers": 6, "n_heads": 6, "n_kv_heads": 6, "vocab_size": 32000, "multiple_of": 32,
             "max_seq_len": 256, "dropout": 0.0}
    torch.save({"model_args": sizes, "model": {}, "config": {}}, repositories / "karpathy+llama2.c/out/ckpt.pt")
    folder = repositories / "milesial+Pytorch-UNet/data"
    for name in ("imgs", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for i in range(400):
        image, mask = (folder / f"imgs/{i:03}.jpg", folder / f"masks/{i:03}_mask.gif")
        if i < 8:
            picture = Image.fromarray(random.integers(256, size=(40, 60, 3), dtype=np.uint8)).resize((1918, 1280))
            picture.save(image, quality=90)
            Image.fromarray((np.asarray(picture)[:, :, 0] > 127).astype(np.uint8)).save(mask)
        else:
            image.write_bytes((folder / f"imgs/{i % 8:03}.jpg").read_bytes())
            mask.write_bytes((folder / f"masks/{i % 8:03}_mask.gif").read_bytes())


def citations(folder, random):
    """Cora's two files: a row of 1433 words, there or not, for each of 2708 papers, and pairs of who cites whom."""
    folder.mkdir(exist_ok=True)
    subjects = [f"Subject_{i}" for i in range(7)]
    with open(folder / "cora.content", "w") as file:
        for paper, words in enumerate(random.random((2708, 1433)) < 0.0127):
            file.write("\t".join([str(paper), *np.where(words, "1", "0"), subjects[paper % 7]]) + "\n")
    pairs = random.permutation(2708 * 2708)[:5429]
    np.savetxt(folder / "cora.cites", np.stack([pairs // 2708, pairs % 2708], axis=1), fmt="%d", delimiter="\t")


def faces(folder, random):
    """JPEG files in the size of aligned faces, ten kilobytes each; sixteen pictures, over and over."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for i in range(6400):
        file = folder / f"{i:06}.jpg"
        if i < 16:
            small = Image.fromarray(random.integers(256, size=(44, 36, 3), dtype=np.uint8))
            small.resize((178, 218)).save(file, quality=90)
        else:
            file.write_bytes((folder / f"{i % 16:06}.jpg").read_bytes())


def shards(folder, random):
    """Tokens of GPT-2 after a header of 256 numbers that says which format it is and how many there are."""
    folder.mkdir(parents=True, exist_ok=True)
    header = np.zeros(256, dtype=np.int32)
    header[:3] = 20240520, 1, 2000000
    tokens = random.integers(50257, size=2000000, dtype=np.uint16)
    (folder / "fineweb_train_000001.bin").write_bytes(header.tobytes() + tokens.tobytes())


def encoder(folder, random):
    """BERT's configuration, whose defaults are those of the base model, and a tokenizer of as many words and parts."""
    import tokenizers
    import transformers

    letters = [chr(97 + i) for i in range(26)]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    while len(pieces) < 30522:
        pieces.append("".join(letters[i] for i in random.integers(26, size=random.integers(3, 9))))
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]", model_max_length=128,
    ).save_pretrained(folder)
    transformers.BertConfig().save_pretrained(folder)
    words = [piece for piece in vocabulary if piece.isalpha() and len(piece) > 2]
    sentences = [" ".join(words[i] for i in random.integers(len(words), size=random.integers(6, 24)))
                 for _ in range(2048)]
    (folder / "sentences.txt").write_text("\n".join(sentences), "utf-8")


def third_set(repositories, random):
    examples = repositories / "pytorch+examples"
    if (examples / "gat").is_dir():
        citations(examples / "gat/cora", random)
    if (examples / "dcgan").is_dir():
        faces(examples / "dcgan/faces/all", random)
    if (examples / "mnist_forward_forward").is_dir():
        digits(examples / "mnist_forward_forward/data/MNIST/raw", random)
    if (examples / "word_language_model").is_dir():
        words(examples, random)
    if (repositories / "UKPLab+sentence-transformers").is_dir():
        encoder(repositories / "UKPLab+sentence-transformers/examples/sentence_transformer/evaluation/bert", random)
    if (repositories / "karpathy+llm.c").is_dir():
        shards(repositories / "karpathy+llm.c/dev/data/fineweb10B", random)


def photographs(folder, random):
    """JPEG files of 640 x 480 pixels and a hundred kilobytes; sixteen pictures, over and over."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for i in range(400):
        file = folder / f"{i:03}.jpg"
        if i < 16:
            small = Image.fromarray(random.integers(256, size=(60, 80, 3), dtype=np.uint8))
            small.resize((640, 480)).save(file, quality=90)
        else:
            file.write_bytes((folder / f"{i % 16:03}.jpg").read_bytes())


def tokens(folder, random, names, number):
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        some = random.integers(50257, size=number, dtype=np.uint16)
        if name.endswith(".npy"):
            np.save(folder / name, some)
        else:
            some.tofile(folder / name)


def fourth_set(repositories, random):
    if (repositories / "pytorch+examples/fast_neural_style").is_dir():
        photographs(repositories / "pytorch+examples/fast_neural_style/photographs/all", random)
    if (repositories / "fxia22+pointnet.pytorch").is_dir():
        open_shapes.clouds(repositories / "fxia22+pointnet.pytorch/shapenet", random)
    if (repositories / "yanx27+Pointnet_Pointnet2_pytorch").is_dir():
        open_shapes.shapes(repositories / "yanx27+Pointnet_Pointnet2_pytorch/data/modelnet40_normal_resampled", random)
    if (repositories / "ranahanocka+MeshCNN").is_dir():
        open_shapes.meshes(repositories / "ranahanocka+MeshCNN/datasets/shrec_16", random)
    if (repositories / "karpathy+build-nanogpt").is_dir():
        tokens(repositories / "karpathy+build-nanogpt/edu_fineweb10B", random,
               ("edufineweb_train_000001.npy", "edufineweb_val_000000.npy"), 2000000)
    if (repositories / "KellerJordan+modded-nanogpt").is_dir():
        record = repositories / "KellerJordan+modded-nanogpt/records/track_1_short/2024-10-10_Muon"
        shards(record / "data/fineweb10B", random)
    if (repositories / "cgarciae+nanoGPT-jax").is_dir():
        tokens(repositories / "cgarciae+nanoGPT-jax/data/shakespeare", random, ("train.bin", "val.bin"), 300000)


def proteins(file, random):
    """Two to five hundred amino acids each, in FASTA's format."""
    letters = np.array(list("LAGVSERTIDPKQNFYMHWC"))
    with open(file, "w") as fasta:
        for i in range(4000):
            fasta.write(f">protein{i:05}\n{''.join(random.choice(letters, random.integers(200, 500)))}\n")


def pets(folder, random):
    """JPEG files of 500 x 375 pixels of 37 breeds, as many as the set's; sixteen pictures, over and over."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for i in range(7390):
        if i < 16:
            small = Image.fromarray(random.integers(256, size=(47, 63, 3), dtype=np.uint8))
            small.resize((500, 375)).save(folder / "picture.jpg", quality=90)
            files.append((folder / "picture.jpg").read_bytes())
            (folder / "picture.jpg").unlink()
        (folder / f"breed{i % 37:02}_{i}.jpg").write_bytes(files[i % 16])


def speech(folder, random):
    """Recordings of two to ten seconds at 22 050 Hz: 64 of them, named over and over."""
    import wave

    (folder / "wavs").mkdir(parents=True, exist_ok=True)
    for i in range(64):
        number = random.integers(2 * 22050, 10 * 22050)
        sound = np.sin(np.cumsum(random.uniform(0.01, 0.3, number // 2000 + 1).repeat(2000)[:number]))
        with wave.open(str(folder / f"wavs/made-up-{i:02}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(22050)
            file.writeframes((10000 * sound + random.normal(0, 300, number)).astype(np.int16).tobytes())
    for name, number in (("training", 12950), ("validation", 150)):
        (folder / f"{name}.txt").write_text("".join(f"made-up-{i % 64:02}|words|words\n" for i in range(number)))


def objects(folder, random):
    """Photographs of 640 x 480 pixels, 64 named over and over, with seven boxes each, described as the real set is."""
    from PIL import Image

    (folder / "train2017").mkdir(parents=True, exist_ok=True)
    (folder / "annotations").mkdir(exist_ok=True)
    for i in range(64):
        small = Image.fromarray(random.integers(256, size=(60, 80, 3), dtype=np.uint8))
        small.resize((640, 480)).save(folder / f"train2017/{i:012}.jpg", quality=90)
    images = [{"id": i, "file_name": f"{i % 64:012}.jpg", "width": 640, "height": 480} for i in range(4000)]
    boxes = []
    for image in images:
        for _ in range(random.integers(1, 14)):
            w, h = (float(x) for x in random.uniform(20, 300, 2))
            x, y = random.uniform(0, 640 - w), random.uniform(0, 480 - h)
            boxes.append({"image_id": image["id"], "bbox": [x, y, w, h], "category_id": int(random.integers(1, 91)),
                          "area": w * h, "iscrowd": 0})
    described = {"images": images, "annotations": boxes}
    (folder / "annotations/instances_train2017.json").write_text(json.dumps(described))


def bodies(folder, random):
    """Paths of five charged bodies: 49 places and speeds of each."""
    for split, number in (("train", 3000), ("valid", 200), ("test", 200)):
        charges = random.choice([-1.0, 1.0], (number, 5, 1))
        speeds = random.normal(0, 0.5, (number, 1, 3, 5)) + random.normal(0, 0.02, (number, 49, 3, 5)).cumsum(axis=1)
        places = random.normal(0, 1, (number, 1, 3, 5)) + 0.1 * speeds.cumsum(axis=1)
        for name, values in (("loc", places), ("vel", speeds), ("charges", charges),
                             ("edges", charges * charges.transpose(0, 2, 1))):
            np.save(folder / f"{name}_{split}_charged5_initvel1small.npy", values)


def fifth_set(repositories, random):
    if (repositories / "facebookresearch+esm").is_dir():
        proteins(repositories / "facebookresearch+esm/proteins.fasta", random)
    if (repositories / "huggingface+accelerate").is_dir():
        pets(repositories / "huggingface+accelerate/examples/pets", random)
    if (repositories / "jik876+hifi-gan").is_dir():
        speech(repositories / "jik876+hifi-gan/LJSpeech-1.1", random)
    if (repositories / "facebookresearch+detr").is_dir():
        objects(repositories / "facebookresearch+detr/coco", random)
    if (repositories / "vgsatorras+egnn").is_dir():
        bodies(repositories / "vgsatorras+egnn/n_body_system/dataset", random)
    if (repositories / "jhhuang96+ConvLSTM-PyTorch").is_dir():
        with gzip.open(repositories / "jhhuang96+ConvLSTM-PyTorch/data/train-images-idx3-ubyte.gz", "wb") as file:
            some = random.integers(256, size=(30, 28, 28), dtype=np.uint8)
            file.write(struct.pack(">4i", 2051, 60000, 28, 28) + some.tobytes() * 2000)
    if (repositories / "vpj+jax_transformer").is_dir():
        letters = random.choice(list("abcdefghijklmnopqrstuvwxyz .,:;!?ABCDEFGHIJKLMNOPQRSTUVWXYZ"), 1115000)
        (repositories / "vpj+jax_transformer/tiny_shakespeare.txt").write_text("It " + "".join(letters))


def voices(folder, random):
    """Spectrograms of 100 speakers, twelve of each, two to five seconds long, and where they come from."""
    for i in range(100):
        speaker = folder / f"speaker{i:03}"
        speaker.mkdir(parents=True, exist_ok=True)
        names = [f"frames{j:02}.npy" for j in range(12)]
        for name in names:
            np.save(speaker / name, random.random((random.integers(200, 500), 40), dtype=np.float32))
        (speaker / "_sources.txt").write_text("".join(f"{name},made-up.flac\n" for name in names))


def restaurants(folder, random):
    """Pairs of what is to be said and how it was said, in GPT-2's numbers, as long as the set's."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 4000), ("valid", 200)):
        with open(folder / f"{split}.jsonl", "w") as file:
            for _ in range(number):
                pair = {"context": random.integers(50257, size=random.integers(20, 50)).tolist(),
                        "completion": random.integers(50257, size=random.integers(15, 45)).tolist() + [50256]}
                file.write(json.dumps(pair) + "\n")


def scenes(folder, random):
    """Photographs of 500 x 375 pixels, 64 named over and over, with a few boxes of twenty kinds each."""
    from PIL import Image

    (folder / "photographs").mkdir(exist_ok=True)
    for i in range(64):
        small = Image.fromarray(random.integers(256, size=(47, 63, 3), dtype=np.uint8))
        small.resize((500, 375)).save(folder / f"photographs/{i:02}.jpg", quality=90)
    objects = []
    for i in range(16551):
        number = random.integers(1, 5)
        size = random.uniform(40, 250, (number, 2))
        corner = random.uniform(0, 1, (number, 2)) * (np.array([499, 374]) - size)
        objects.append({"boxes": np.concatenate([corner, corner + size], axis=1).astype(int).tolist(),
                        "labels": random.integers(1, 21, number).tolist(), "difficulties": [0] * int(number)})
    images = [f"photographs/{i % 64:02}.jpg" for i in range(len(objects))]
    (folder / "TRAIN_images.json").write_text(json.dumps(images))
    (folder / "TRAIN_objects.json").write_text(json.dumps(objects))


def households(folder, random):
    """Windows of 192 hours: consumption an hour before, four numbers of the day, whose it is, and consumption."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, number in (("train", 12800), ("test", 512)):
        used = random.gamma(4, 0.25, (number, 193)).astype(np.float32) + 0.01
        given = random.normal(size=(number, 192, 6)).astype(np.float32)
        given[:, 0, 0], given[:, 1:, 0] = 0, used[:, 1:-1]
        given[:, :, 5] = random.integers(370, size=(number, 1))
        np.save(folder / f"{split}_data_elect.npy", given)
        np.save(folder / f"{split}_label_elect.npy", used[:, 1:])
        np.save(folder / f"{split}_v_elect.npy", np.ones((number, 2), dtype=np.float32))


def sixth_set(repositories, random):
    if (repositories / "CorentinJ+Real-Time-Voice-Cloning").is_dir():
        voices(repositories / "CorentinJ+Real-Time-Voice-Cloning/SV2TTS/encoder", random)
    if (repositories / "microsoft+LoRA").is_dir():
        restaurants(repositories / "microsoft+LoRA/examples/NLG/data/e2e", random)
    if (repositories / "sgrvinod+a-PyTorch-Tutorial-to-Object-Detection").is_dir():
        scenes(repositories / "sgrvinod+a-PyTorch-Tutorial-to-Object-Detection", random)
    if (repositories / "zhykoties+TimeSeries").is_dir():
        households(repositories / "zhykoties+TimeSeries/data/elect", random)
    if (repositories / "eriklindernoren+PyTorch-GAN").is_dir():
        digits(repositories / "eriklindernoren+PyTorch-GAN/data/mnist/MNIST/raw", random)
    if (repositories / "EleutherAI+nanoGPT-mup").is_dir():
        tokens(repositories / "EleutherAI+nanoGPT-mup/data/openwebtext", random, ("train.bin", "val.bin"), 2000000)
    if (repositories / "karpathy+llama2.c").is_dir():
        stories = repositories / "karpathy+llama2.c/data/TinyStories_all_data"
        stories.mkdir(parents=True, exist_ok=True)
        for name in ("data00.bin", "data01.bin"):
            random.integers(32000, size=4000000, dtype=np.uint16).tofile(stories / name)
    for name, file, size, kind in (("w86763777+pytorch-ddpm", "cifar10", (50000, 32, 32, 3), np.uint8),
                                   ("antao97+dgcnn.pytorch", "modelnet40", (640, 2048, 3), np.float32)):
        if (repositories / name).is_dir():
            (repositories / name / "data").mkdir(exist_ok=True)
            whole = kind == np.uint8
            some = random.integers(256, size=size, dtype=kind) if whole else random.random(size, dtype=kind)
            np.save(repositories / name / f"data/{file}.npy", some)


def hops(file, random):
    """Episodes of a hopping robot: 600 of 200 to 720 moves, eleven numbers seen and three done at each."""
    episodes = []
    for _ in range(600):
        moves = random.integers(200, 720)
        ended = np.zeros(moves, dtype=bool)
        ended[-1] = True
        episodes.append({"observations": random.normal(size=(moves, 11)).astype(np.float32),
                         "actions": random.uniform(-1, 1, (moves, 3)).astype(np.float32),
                         "rewards": random.uniform(1, 5, moves).astype(np.float32), "terminals": ended})
    file.write_bytes(pickle.dumps(episodes))


def discussions(file, random):
    """Graphs of who answered whom: 1000 of two kinds, some 430 nodes each, a tree and a few edges more, no labels."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "w") as text:
        text.write("1000\n")
        for i in range(1000):
            nodes = int(random.integers(150, 710))
            near = [[] for _ in range(nodes)]
            popular = np.floor(np.arange(1, nodes) * random.random(nodes - 1) ** 3).astype(int)
            more = random.integers(nodes, size=(nodes // 6, 2))
            for a, b in [*zip(range(1, nodes), popular.tolist()), *more.tolist()]:
                if a != b and b not in near[a]:
                    near[a].append(b)
                    near[b].append(a)
            text.write(f"{nodes} {i % 2}\n")
            text.write("".join(f"0 {len(others)} {' '.join(map(str, others))}\n" for others in near))


def films(file, random):
    """A million ratings: 6040 people who saw 165 of 3416 films on average, in the order in which they did."""
    file.parent.mkdir(exist_ok=True)
    with open(file, "w") as text:
        for person in range(1, 6041):
            number = min(2000, 20 + int(random.gamma(0.7, 207)))
            seen = random.permutation(3416)[:number] + 1
            text.write("".join(f"{person} {film}\n" for film in seen.tolist()))


def photographs(folder, random):
    """Photographs of 500 x 375 pixels, a hundred kilobytes each, with masks of 21 kinds, 64 named over and over."""
    from PIL import Image

    inside = folder / "VOCdevkit/VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "SegmentationClassAug", "ImageSets/Segmentation"):
        (inside / name).mkdir(parents=True, exist_ok=True)
    for i in range(64):
        small = Image.fromarray(random.integers(256, size=(47, 63, 3), dtype=np.uint8)).resize((500, 375))
        grain = np.asarray(small) + random.normal(0, 12, size=(375, 500, 1))
        picture = Image.fromarray(grain.clip(0, 255).astype(np.uint8))
        picture.save(inside / f"JPEGImages/{i:06}.jpg", quality=90)
        mask = Image.fromarray(random.integers(21, size=(5, 6), dtype=np.uint8)).resize((500, 375), Image.NEAREST)
        for name in ("SegmentationClass", "SegmentationClassAug"):
            mask.save(inside / f"{name}/{i:06}.png")
    names = "".join(f"{i % 64:06}\n" for i in range(10582))
    (folder / "train_aug.txt").write_text(names)
    (inside / "ImageSets/Segmentation/val.txt").write_text(names[:7 * 1449])


def oil(file, random):
    """Two years of hours: a date and seven numbers, as those of one electricity transformer."""
    file.parent.mkdir(parents=True, exist_ok=True)
    hours = np.datetime64("2016-07-01T00") + np.arange(17420)
    values = random.normal(size=(17420, 7)).cumsum(axis=0) / 10 + 5 * np.sin(np.arange(17420) * np.pi / 12)[:, None]
    with open(file, "w") as text:
        text.write("date,HUFL,HULL,MUFL,MULL,LUFL,LULL,OT\n")
        for hour, row in zip(hours, values.tolist()):
            text.write(f"{str(hour).replace('T', ' ')}:00:00,{','.join(f'{value:.6f}' for value in row)}\n")


def seventh_set(repositories, random):
    if (repositories / "kzl+decision-transformer").is_dir():
        hops(repositories / "kzl+decision-transformer/gym/data/hopper-medium-v2.pkl", random)
    if (repositories / "weihua916+powerful-gnns").is_dir():
        discussions(repositories / "weihua916+powerful-gnns/dataset/REDDITBINARY/REDDITBINARY.txt", random)
    if (repositories / "pmixer+SASRec.pytorch").is_dir():
        films(repositories / "pmixer+SASRec.pytorch/python/data/ml-1m.txt", random)
    if (repositories / "VainF+DeepLabV3Plus-Pytorch").is_dir():
        photographs(repositories / "VainF+DeepLabV3Plus-Pytorch/datasets/data", random)
    if (repositories / "zhouhaoyi+Informer2020").is_dir():
        oil(repositories / "zhouhaoyi+Informer2020/data/ETT/ETTh1.csv", random)
    if (repositories / "Liuhong99+Sophia").is_dir():
        tokens(repositories / "Liuhong99+Sophia/data/openwebtext", random, ("train.bin", "val.bin"), 2000000)


def sound(file, seconds, random):
    """A recording of 16 000 samples a second, 16 bits each."""
    samples = random.normal(0, 2000, size=int(16000 * seconds)).astype(np.int16)
    size = samples.nbytes
    header = b"RIFF" + struct.pack("<I", 36 + size) + b"WAVEfmt " + struct.pack("<IHHIIHH", 16, 1, 1, 16000, 32000, 2, 16)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(header + b"data" + struct.pack("<I", size) + samples.tobytes())


def speakers(folder, random):
    """Utterances of 4 to 12 seconds, 240 named over and over by 5994 speakers, noises of five seconds, and echoes of one."""
    for i in range(240):
        sound(folder / f"wav/id{i:05}/a/00001.wav", random.uniform(4, 12), random)
    lines = [f"id{i % 5994:05} id{i % 240:05}/a/00001.wav\n" for i in range(200000)]
    (folder / "train_list.txt").write_text("".join(lines))
    for kind in ("noise", "speech", "music"):
        for i in range(40):
            sound(folder / f"musan_split/{kind}/made-up/{kind}-{i:02}/00000.wav", 5, random)
    for i in range(60):
        sound(folder / f"simulated_rirs/largeroom/Room{i:03}/00001.wav", 1, random)


def eighth_set(repositories, random):
    if (repositories / "TaoRuijie+ECAPA-TDNN").is_dir():
        speakers(repositories / "TaoRuijie+ECAPA-TDNN/sounds", random)
    if (repositories / "facebookresearch+DeepSDF").is_dir():
        open_shapes.distances(repositories / "facebookresearch+DeepSDF/data/SdfSamples/ShapeNetV2/04256520", random)
    if (repositories / "microsoft+dion").is_dir():
        folder = repositories / "microsoft+dion/data/fineweb10B"
        shards(folder, random)
        (folder / "fineweb_val_000000.bin").write_bytes((folder / "fineweb_train_000001.bin").read_bytes())
    if (repositories / "tysam-code+hlb-gpt").is_dir():
        import torch

        tokens_of = {split: torch.from_numpy(random.integers(50257, size=number, dtype=np.int32))
                     for split, number in (("train", 4000000), ("eval", 250000))}
        torch.save(tokens_of, repositories / "tysam-code+hlb-gpt/data.pt")


def figures(folder, random):
    """Films of a skeleton of 32 joints, of seven people, and what four cameras see of 17 of its joints."""
    folder.mkdir(exist_ok=True)
    films, seen = {}, {}
    for person in ("S1", "S5", "S6", "S7", "S8", "S9", "S11"):
        films[person], seen[person] = {}, {}
        for name in ("Walking", "Eating"):
            films[person][name] = random.normal(0, 0.01, (4000, 32, 3)).cumsum(axis=0).astype(np.float32)
            seen[person][name] = [random.uniform(0, 1000, (4000, 17, 2)).astype(np.float32) for _ in range(4)]
    np.savez(folder / "data_3d_h36m.npz", positions_3d=films)
    described = {"layout_name": "h36m", "num_joints": 17,
                 "keypoints_symmetry": [[4, 5, 6, 11, 12, 13], [1, 2, 3, 14, 15, 16]]}
    np.savez(folder / "data_2d_h36m_cpn_ft_h36m_dbb.npz", positions_2d=seen, metadata=described)


def small_pictures(file, random):
    """PNG files of 32 x 32 pixels with a label each, in one archive without compression, as EDM's own tool makes it."""
    import io
    import zipfile

    from PIL import Image

    file.parent.mkdir(parents=True, exist_ok=True)
    labels = []
    with zipfile.ZipFile(file, "w") as archive:
        for i in range(4000):
            png = io.BytesIO()
            Image.fromarray(random.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(png, "png", compress_level=1)
            name = f"{i // 1000:05}/img{i:08}.png"
            archive.writestr(name, png.getvalue())
            labels.append([name, i % 10])
        archive.writestr("dataset.json", json.dumps({"labels": labels}))


def ninth_set(repositories, random):
    from PIL import Image

    if (repositories / "cloneofsimo+minRF").is_dir():
        digits(repositories / "cloneofsimo+minRF/data/MNIST/raw", random)
    if (repositories / "NVlabs+edm").is_dir():
        small_pictures(repositories / "NVlabs+edm/datasets/cifar10-32x32.zip", random)
    if (repositories / "facebookresearch+VideoPose3D").is_dir():
        figures(repositories / "facebookresearch+VideoPose3D/data", random)
    if (repositories / "facebookresearch+dino").is_dir():
        for i in range(64):  # of 500 x 375 pixels, a hundred kilobytes each
            small = Image.fromarray(random.integers(256, size=(47, 63, 3), dtype=np.uint8)).resize((500, 375))
            grain = (np.asarray(small) + random.normal(0, 12, size=(375, 500, 1))).clip(0, 255).astype(np.uint8)
            folder = repositories / f"facebookresearch+dino/imagenet/train/n{i % 16:08}"
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(grain).save(folder / f"{i:05}.JPEG", quality=90)
    if (repositories / "epfml+llm-baselines").is_dir():
        tokens(repositories / "epfml+llm-baselines/src/data/datasets", random, ("train.bin", "val.bin"), 2000000)
    if (repositories / "tanishqkumar+beyond-nanogpt").is_dir():
        letters = np.array(list("      etaoinshrdlucmfwypvbgkjqxz.,ETAI"))
        stories = ["".join(random.choice(letters, random.integers(500, 1300))) for _ in range(2000)]
        (repositories / "tanishqkumar+beyond-nanogpt/architectures/stories.txt").write_text("\n\n".join(stories))


def main():
    repositories, random = pathlib.Path(sys.argv[1]), np.random.default_rng(0)
    if (repositories / "spro+char-rnn.pytorch").is_dir():
        second_set(repositories, np.random.default_rng(1))
    third_set(repositories, np.random.default_rng(2))
    fourth_set(repositories, np.random.default_rng(3))
    fifth_set(repositories, np.random.default_rng(4))
    sixth_set(repositories, np.random.default_rng(5))
    seventh_set(repositories, np.random.default_rng(6))
    eighth_set(repositories, np.random.default_rng(7))
    ninth_set(repositories, np.random.default_rng(8))
    if not (repositories / "karpathy+nanoGPT").is_dir():
        return
    nanogpt(repositories / "karpathy+nanoGPT", random)
    words(repositories / "pytorch+examples", random)
    digits(repositories / "pytorch+examples/data/MNIST/raw", random)
    digits(repositories / "TeaPearce+Conditional_Diffusion_MNIST/data/MNIST/raw", random)
    enwik8(repositories / "lucidrains+PaLM-pytorch", random)
    radiance(repositories / "krrish94+nerf-pytorch", random)
    instructions(repositories / "tatsu-lab+stanford_alpaca", random)
    cifar(repositories / "KellerJordan+cifar10-airbench", random)


if __name__ == "__main__":
    main()
