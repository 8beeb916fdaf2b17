# SPDX-License-Identifier: Apache-2.0
"""saturate.load: models that transformers wrote (tests/checkpoints) against what transformers computes of them. Needs no PyTorch."""
import asyncio
import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import saturate

MODELS = pathlib.Path(__file__).resolve().parents[2] / "tests/checkpoints"
pytestmark = pytest.mark.skipif(not hasattr(saturate._build.core(), "Model"), reason="built with SATURATE_PROGRAM=OFF")


def golden(name):
    return json.loads((MODELS / name / "golden.json").read_text())


def words(ids):
    return " ".join(map(str, ids))


@pytest.fixture(scope="module")
def translator():
    with saturate.load(MODELS / "bart", ids=True, device="cpu") as model:
        yield model


@pytest.fixture(scope="module")
def writer():
    with saturate.load(MODELS / "llama3", ids=True, device="cpu") as model:
        yield model


@pytest.fixture(scope="module")
def sources():
    first = golden("bart")["source"]
    return [words(first[i % 9 :]) for i in range(60)]


@pytest.mark.parametrize("name", ["bart", "m2m100", "marian-bin-half", "t5"])
def test_translates_as_transformers(name):
    expected = golden(name)["greedy"]
    with saturate.load(MODELS / name, ids=True, device="cpu") as model:
        assert model.kind == "translation"
        found = model.translate([words(golden(name)["source"])], beam=1, max_length=len(expected))[0]
    assert [int(x) for x in found.text.split()] == expected


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gemma2"])
def test_continues_as_transformers(name):
    expected = golden(name)["greedy"]
    with saturate.load(MODELS / name, ids=True, device="cpu") as model:
        assert model.kind == "language"
        found = model.generate(words(golden(name)["prompt"]), temperature=0, max_tokens=len(expected))
    assert list(found.ids) == expected


@pytest.mark.parametrize("name", ["llama3", "qwen3", "gemma2"])
def test_scores_as_transformers(name):
    target, greedy = golden(name)["target"], golden(name)["greedy"]
    prompt = golden(name)["prompt"]
    with saturate.load(MODELS / name, ids=True, device="cpu") as model:
        said = model.score(words(target))
        a, b = model.score([words(target), words(prompt + greedy)], likeliest=2)
        assert asyncio.run(model.score_async(words(target))) == said
    assert said.log_probability == pytest.approx(golden(name)["log_probability"], abs=2e-3)
    assert list(said.ids) == target and said.token_log_probabilities[0] is None and len(said.tokens) == len(target)
    assert a.token_log_probabilities == said.token_log_probabilities and not any(said.likeliest)
    assert all(len(places) == 2 and places[0][1] >= places[1][1] for places in a.likeliest[1:])
    # A greedy continuation is made of the likeliest tokens.
    for own, places in list(zip(b.token_log_probabilities, b.likeliest))[-len(greedy):]:
        assert own == places[0][1]


def test_scores_and_alternatives(translator, sources):
    found = translator.translate(sources[0], beam=4, nbest=3, length_penalty=1.0)
    each = [found, *found.alternatives]
    assert len(each) == 3 and len({t.text for t in each}) == 3
    assert [t.score for t in each] == sorted((t.score for t in each), reverse=True)
    for t in each:
        assert len(t.tokens) + 1 == len(t.token_log_probabilities)
        assert t.log_probability == pytest.approx(sum(t.token_log_probabilities), rel=1e-6)
        assert t.score == pytest.approx(t.log_probability / len(t.token_log_probabilities), rel=1e-5)
    assert translator.translate(sources[0], beam=4).text == found.text == str(found)


def test_each_option_reaches_the_search(translator, sources):
    plain = translator.translate(sources[:3], beam=1, max_length=9)
    assert all(len(t.tokens) <= 9 for t in plain)
    begun = translator.translate(sources[:3], beam=1, prefix=["7", "8 9", ""], max_length=9)
    assert [t.text.split()[:2] for t in begun][1] == ["8", "9"] and begun[0].text.split()[0] == "7"
    assert begun[2].text == plain[2].text
    ids = translator.translate(sources[0], beam=1, no_repeat_ngram=1, max_length=9).text.split()
    assert len(set(ids)) == len(ids)
    assert len(translator.translate(sources[0], beam=1, min_length=12).tokens) >= 12
    assert translator.translate([]) == []


def test_lines_come_in_their_order_while_more_are_read(translator, sources):
    read = []

    def lines():
        for source in sources:
            read.append(source)
            yield source + "\n"

    expected = [t.text for t in translator.translate(sources, beam=1)]
    stream = translator.translate_lines(lines(), beam=1)
    assert read == []
    assert [t.text for t in stream] == expected


def test_threads_share_a_model(translator, sources):
    expected = [t.text for t in translator.translate(sources, beam=2)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [t.text for t in pool.map(lambda s: translator.translate(s, beam=2), sources)] == expected


def test_waiting_leaves_python_to_other_threads(translator):
    started, ended = threading.Event(), threading.Event()

    def wait():
        big = translator._translate([words(golden("bart")["source"])] * 20000, None, dict(beam=4))
        started.set()
        big.wait(1.0, False)
        ended.set()
        big.cancel()

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    for _ in range(10):
        time.sleep(0.001)
    assert not ended.is_set()
    thread.join()


def test_await(translator, writer, sources):
    expected = [t.text for t in translator.translate(sources, beam=1)]

    async def main():
        found = await asyncio.gather(*(translator.translate_async(s, beam=1) for s in sources))
        assert [t.text for t in found] == expected
        prompt = words(golden("llama3")["prompt"])
        options = dict(temperature=0, max_tokens=20)
        whole = await writer.generate_async(prompt, **options)
        parts = [part async for part in writer.stream_async(prompt, **options)]
        assert len(parts) > 5 and "".join(parts) == whole.text == "".join(writer.stream(prompt, **options))
        task = asyncio.create_task(translator.translate_async(sources * 300, beam=4))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await translator.translate_async(sources[0], beam=1)).text == expected[0]  # and goes on

    asyncio.run(main())
    asyncio.run(main())  # another loop


def test_seeds_and_stops(writer):
    prompt = words(golden("llama3")["prompt"])
    a, b = (writer.generate([prompt] * 2, seed=5, max_tokens=8) for _ in range(2))
    assert [g.ids for g in a] == [g.ids for g in b] and a[0].ids != a[1].ids
    assert len({tuple(writer.generate(prompt, max_tokens=8, min_tokens=8).ids) for _ in range(8)}) > 1
    whole = writer.generate(prompt, temperature=0, max_tokens=8)
    third = whole.text.split()[2]
    cut = writer.generate(prompt, temperature=0, max_tokens=8, stop=f" {third}")
    assert cut.ending == "stop" and f" {third}" not in cut.text and whole.text.startswith(cut.text)
    assert whole.ending == "length"
    assert writer.generate(prompt, temperature=2, min_p=1, max_tokens=8).ids == whole.ids  # the likeliest alone is left
    said = writer.generate(prompt, temperature=0, max_tokens=8, presence_penalty=100).ids
    assert len(set(said)) == len(said)
    with pytest.raises(ValueError, match="min_p is 2"):
        writer.generate(prompt, min_p=2)


WRONG = {
    "beam": (ValueError, "beam is 0; it must be in 1 .. 64", ["1 2"], dict(beam=0)),
    "nbest": (ValueError, r"1 .. beam \(2\)", ["1 2"], dict(beam=2, nbest=3)),
    "number": (TypeError, "texts\\[1\\] is of type int", ["1 2", 3], {}),
    "bytes": (TypeError, "texts is of type bytes", b"1 2", {}),
    "lines": (ValueError, "texts\\[0\\] has several lines", ["1\n2"], {}),
    "surrogate": (ValueError, "UTF-8", ["\ud800"], {}),
    "long": (ValueError, r"texts\[1\].*tokens", ["1 2", "3 " * 5000], {}),
    "not_ids": (ValueError, r"texts\[0\]", ["word"], {}),
    "prefixes": (ValueError, "prefix has 2 texts and there are 1", ["1 2"], dict(prefix=["1", "2"])),
    "penalty": (TypeError, "length_penalty is 'a'", ["1 2"], dict(length_penalty="a")),
    "unknown": (TypeError, "nonsense", ["1 2"], dict(nonsense=1)),
}


@pytest.mark.parametrize("case", WRONG)
def test_says_what_is_wrong(translator, case):
    error, message, texts, options = WRONG[case]
    with pytest.raises(error, match=message):
        translator.translate(texts, **options)


def test_says_what_is_wrong_with_models(translator, writer, tmp_path):
    with pytest.raises(OSError, match="does not exist"):
        saturate.load(tmp_path / "nothing")
    with pytest.raises((OSError, ValueError)):
        saturate.load(tmp_path)
    with pytest.raises(ValueError, match="use translate"):
        translator.generate("1 2")
    with pytest.raises(ValueError, match="use generate"):
        writer.translate("1 2")
    with pytest.raises(ValueError, match="saturate eval --score"):
        translator.score("1 2")
    with pytest.raises(ValueError, match=r"texts\[1\] has no tokens"):
        writer.score(["1 2", ""])
    with pytest.raises(ValueError, match="max_length"):
        writer.score("3 " * 100000)
    with pytest.raises(ValueError, match="likeliest is 5000"):
        writer.score("1 2", likeliest=5000)
    assert writer.score([]) == []
    with pytest.raises(ValueError, match="min_tokens is 9 and max_tokens 5"):
        writer.generate("1 2", min_tokens=9, max_tokens=5)
    with pytest.raises(ValueError, match="temperature is -1"):
        writer.generate("1 2", temperature=-1)
    with pytest.raises(ValueError, match="max_length"):
        writer.generate("3 " * 100000)
    closed = saturate.load(MODELS / "bart", ids=True, device="cpu")
    closed.close()
    closed.close()
    with pytest.raises(ValueError, match="was closed"):
        closed.translate("1 2")
    if not saturate.build_info()["cuda"]:
        with pytest.raises((NotImplementedError, RuntimeError, ValueError), match="(?i)cuda|gpu"):
            saturate.load(MODELS / "bart", ids=True, device="cuda")


def test_a_signal_ends_a_call(translator, sources):
    class Enough(Exception):
        pass

    def enough(*_):
        raise Enough

    before = signal.signal(signal.SIGALRM, enough)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.15)
        with pytest.raises(Enough):
            translator.translate(sources * 2000, beam=4)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


ENDINGS = {
    "stream_half_read": "s = m.stream('3 4', max_tokens=100, min_tokens=100); next(s)",
    "request_under_way": "r = m._generate(['3 4'] * 50, None, False, dict(max_tokens=100))",
    "await_cut_off": """
import asyncio
try:
    asyncio.run(asyncio.wait_for(m.generate_async(['3 4'] * 50, max_tokens=100), 0.001))
except asyncio.TimeoutError:
    del m
""",
    "fork": """
import numpy, os
m.generate('3 4', max_tokens=2)
child = os.fork()
if child == 0:
    try:
        m.generate('3 4')
    except NotImplementedError as e:
        saturate.matmul(numpy.ones((300, 300), 'f4'), numpy.ones((300, 300), 'f4'))  # with threads of its own
        sys.exit(0 if 'forked' in str(e) else 3)
    sys.exit(4)
assert os.waitpid(child, 0)[1] == 0
""",
}


@pytest.mark.parametrize("case", ENDINGS)
def test_the_process_ends(case):
    begin = f"import sys, saturate\nm = saturate.load({str(MODELS / 'llama3')!r}, ids=True, device='cpu')\n"
    done = subprocess.run([sys.executable, "-c", begin + ENDINGS[case]], env=dict(os.environ), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
