# SPDX-License-Identifier: Apache-2.0
"""Several models as one, bit for bit what `saturate translate` makes of them. Needs no PyTorch."""
import asyncio
import json
import pathlib
import shutil
import struct
import subprocess

import pytest

import saturate

MODELS = pathlib.Path(__file__).resolve().parents[2] / "tests/checkpoints"
SOURCES = [" ".join(str(3 + i * j % 29) for j in range(1, 4 + i % 9)) + " 2" for i in range(1, 25)]
pytestmark = pytest.mark.skipif(not hasattr(saturate._build.core(), "Model"), reason="built with SATURATE_PROGRAM=OFF")


def program():
    """That of a build tree, or of an installed package."""
    module = pathlib.Path(saturate._build.core().__file__)
    for place in (module.parent / "bin/saturate", module.parents[2] / "bin/saturate"):
        if place.exists():
            return str(place)
    return shutil.which("saturate") or pytest.fail("the program is neither in the package, nor in the build tree, nor on the PATH")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The published model, and one whose every other weight is a fifth larger."""
    other = tmp_path_factory.mktemp("models") / "other"
    shutil.copytree(MODELS / "bart", other)
    data = bytearray((other / "model.safetensors").read_bytes())
    (size,) = struct.unpack("<Q", data[:8])
    count = (len(data) - 8 - size) // 2  # in 16 bits
    values = struct.unpack_from(f"<{count}e", data, 8 + size)
    struct.pack_into(f"<{count}e", data, 8 + size, *(v * (1.2 if i % 2 else 1) for i, v in enumerate(values)))
    (other / "model.safetensors").write_bytes(data)
    return [MODELS / "bart", other]


def translated(folders, *args):
    models = [part for folder in folders for part in ("--model", str(folder))]
    done = subprocess.run([program(), "translate", *models, "--device", "cpu", "--ids", "--json", "--quiet", *args],
                          input="".join(s + "\n" for s in SOURCES), capture_output=True, text=True, check=True)
    return [json.loads(line)["translations"] for line in done.stdout.splitlines()]


def told(found):
    return [[(t.text, t.score, t.log_probability, list(t.token_log_probabilities)) for t in (best, *best.alternatives)] for best in found]


@pytest.mark.parametrize("weights", [None, [3, 1.0]])
@pytest.mark.parametrize("beam", [1, 4])
def test_equals_translate_bit_for_bit(folders, weights, beam):
    flags = ["--beam", str(beam), "--nbest", str(beam), *(["--weights", "3,1"] if weights else [])]
    want = [[(t["text"], t["score"], t["log_probability"], t["token_log_probabilities"]) for t in best]
            for best in translated(folders, *flags)]
    with saturate.load(folders, weights=weights, ids=True, device="cpu") as model:
        found = told(model.translate(SOURCES, beam=beam, nbest=beam))
        assert told(model.translate_lines(SOURCES, beam=beam, nbest=beam)) == found
        assert told([asyncio.run(model.translate_async(SOURCES[0], beam=beam, nbest=beam))]) == found[:1]
    assert found == want
    alone = [[t["text"] for t in best] for best in translated(folders[:1], *flags[:4])]
    assert [[t[0] for t in best] for best in found] != alone


def test_a_model_beside_itself_is_itself(folders):
    with saturate.load(folders[0], ids=True, device="cpu") as one, saturate.load([folders[0]] * 2, ids=True, device="cpu") as two:
        assert told(two.translate(SOURCES, beam=3, nbest=2)) == told(one.translate(SOURCES, beam=3, nbest=2))
        assert two.weight_bytes == 2 * one.weight_bytes > 0
        assert (one.folders, one.weights) == ([one.folder], [1.0])


def test_says_what_it_is(folders):
    model = saturate.load([str(folders[0]), folders[1]], weights=(3, 1), ids=True, device="cpu")
    assert model.kind == "translation"
    assert model.folder == model.folders[0] == str(folders[0]) and model.folders[1] == str(folders[1])
    assert model.weights == [0.75, 0.25]
    model.close()
    assert model.weight_bytes == 0
    with pytest.raises(ValueError, match="was closed"):
        model.translate("3 4 2")


def test_says_what_is_wrong(folders, tmp_path):
    def load(what, **options):
        return saturate.load(what, ids=True, device="cpu", **options)

    with pytest.raises(ValueError, match="empty list"):
        load([])
    with pytest.raises(ValueError, match="9 models are given; at most 8"):
        load([folders[0]] * 9)
    with pytest.raises(ValueError, match="weights has 3 numbers and there are 2 models"):
        load(folders, weights=[1, 2, 3])
    with pytest.raises(ValueError, match=r"weights\[1\] is -1"):
        load(folders, weights=[1, -1])
    with pytest.raises(ValueError, match=r"weights\[0\] is nan"):
        load(folders, weights=[float("nan"), 1])
    with pytest.raises(TypeError, match=r"weights\[0\] is '1'"):
        load(folders, weights=["1", 1])
    with pytest.raises(TypeError, match="weights is of type str"):
        load(folders, weights="12")
    with pytest.raises(TypeError, match="it must be a path, or a list of them"):
        load(7)
    with pytest.raises(OSError, match="does not exist"):
        load([folders[0], tmp_path / "nothing"])
    with pytest.raises(ValueError, match="is a language model"):
        load([folders[0], MODELS / "llama3"])
    with pytest.raises(ValueError, match="is a language model"):
        load([MODELS / "llama3", folders[0]])
    with pytest.raises(ValueError, match="eos_id is 2 in .* and 1 in .*need the same"):
        load([folders[0], MODELS / "t5"])
    with pytest.raises(ValueError, match="adapter is for one model"):
        load(folders, adapter=folders[1])
