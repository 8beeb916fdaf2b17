# SPDX-License-Identifier: Apache-2.0
"""Models that translate or continue texts: ``load`` and what it returns. Nothing but the standard library is needed."""
from __future__ import annotations

import asyncio
import collections
import collections.abc
import dataclasses
import os
import weakref
from typing import Any, AsyncIterator, Callable, Iterable, Iterator, Optional, Sequence, Union, overload

from saturate._build import core

_WAIT_SECONDS = 0.1  # between two looks at signals, so that Ctrl-C ends a call
_AHEAD = 4096  # lines that translate_lines() has under way


@dataclasses.dataclass(frozen=True)
class Translation:
    """One text's translation.

    ``score`` is ``log_probability`` (natural logarithm, a sum over the tokens and the end of the sentence) by
    length ** length_penalty. ``tokens`` are the pieces of the target's vocabulary, ``token_log_probabilities`` one for each and one
    for the end. ``alternatives`` holds the next best ones, as many as ``nbest`` asked for beyond the first."""

    text: str
    score: float
    log_probability: float
    tokens: Sequence[str]
    token_log_probabilities: Sequence[float]
    alternatives: Sequence[Translation] = ()

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Generation:
    """What was added to a prompt. ``ending`` is "stop" (end of text, or a stop string, which ``text`` is without) or "length"."""

    text: str
    ids: Sequence[int]
    ending: str

    def __str__(self) -> str:
        return self.text


@dataclasses.dataclass(frozen=True)
class Score:
    """How likely a language model takes a text to be.

    ``log_probability`` (natural logarithm) is the sum of ``token_log_probabilities``, of which the first is None: nothing stands before
    a text. ``tokens`` is the text of each token ("<0xE2>" for part of a character); ``likeliest`` holds, for each, the likeliest tokens
    in its place with their log-probabilities, as many as were asked for."""

    log_probability: float
    tokens: Sequence[str]
    ids: Sequence[int]
    token_log_probabilities: Sequence[Optional[float]]
    likeliest: Sequence[Sequence[tuple[str, float]]]


class TextStream(Iterator[str]):
    """A continuation that comes in parts. Dropping or closing it ends the generation."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._parts: collections.deque[str] = collections.deque()

    def __next__(self) -> str:
        while not self._parts:
            ended = self._request.finished
            self._parts.extend(text for _, text in self._request.take_pieces())
            if self._parts:
                break
            if ended:
                _raise(self._request)
                raise StopIteration
            self._request.wait(_WAIT_SECONDS, True)
        return self._parts.popleft()

    def close(self) -> None:
        self._request.cancel()

    __del__ = close


class Model:
    """A loaded model; made by :func:`load`. Threads and event loops may share one: their requests are computed side by side,
    each with the result it has alone (on a GPU to rounding, unless ``same_bits``)."""

    def __init__(self, folders: Any, weights: Any, device: str, precision: str, adapter: Any, ids: bool, same_bits: bool,
                 sequences: int, max_length: int) -> None:
        module = core()
        if not hasattr(module, "Model"):
            raise NotImplementedError("[load] this package was built with the kernels alone (SATURATE_PROGRAM=OFF); install it without")
        paths = _folders(folders)
        self._core = module.Model(
            paths, weights=_weights(weights, len(paths)), device=device, precision=precision, adapter=os.fspath(adapter) if adapter else "", ids=bool(ids),
            same_bits=bool(same_bits), sequences=_whole("load", "sequences", sequences, 1, 4096),
            max_length=_whole("load", "max_length", max_length, 2, 1 << 20))
        # Its threads end before the interpreter does.
        self._end = weakref.finalize(self, _close, self._core)

    @property
    def folder(self) -> str:
        """Where the weights lie; of several models the first one's."""
        return self._core.folders[0]

    @property
    def folders(self) -> list[str]:
        """The same of each of several models that are one."""
        return self._core.folders

    @property
    def weights(self) -> list[float]:
        """What each of them counts; the sum is 1."""
        return self._core.weights

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights of all, in bytes; 0 after :meth:`close`."""
        return self._core.weight_bytes

    @property
    def kind(self) -> str:
        """"translation" or "language"."""
        return self._core.kind

    def close(self) -> None:
        """Gives memory and threads back; what is under way fails. A model that is no longer used does it by itself."""
        self._end()

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- translation

    @overload
    def translate(self, texts: str, **options: Any) -> Translation: ...
    @overload
    def translate(self, texts: Sequence[str], **options: Any) -> list[Translation]: ...
    def translate(self, texts, **options):
        """Translates sentences, one a text.

        Parameters
        ----------
        texts : str, or list of str
            One sentence, or a list of them; the result is one :class:`Translation`, or a list.
        beam : int, optional
            Width of the search, 1: greedy; the model's own if it is left out. The first use of a width plans memory for it.
        nbest : int
            So many translations, at most the beam: the best, and the others in its ``alternatives``.
        length_penalty : float, optional
            Scores are divided by length to this power; the model's own if left out.
        prefix : str, or list of str, optional
            What the translation begins with; a list holds one for each text.
        min_length, max_length : int
            Tokens of a translation; 0: as the model says.
        repetition_penalty : float
            Above 1: what was said becomes less likely.
        no_repeat_ngram : int
            So many tokens in a row do not come twice; 0: they may.

        Raises
        ------
        TypeError, ValueError
            A text that is no str, has several lines, or has more tokens than the model takes; an option out of its range.
        MemoryError, RuntimeError
            The machine failed. ``ValueError`` also after close().

        Example
        -------
        >>> model = saturate.load("runs/ende")                      # doctest: +SKIP
        >>> model.translate(["A dog runs."], beam=4)[0].text        # doctest: +SKIP
        'Ein Hund läuft.'
        """
        request = self._translate(texts, None, options)
        _wait(request)
        return self._translations(request, isinstance(texts, str))

    async def translate_async(self, texts: Union[str, Sequence[str]], **options: Any) -> Any:
        """:meth:`translate` for ``await``; other tasks go on meanwhile. A task that is cancelled takes its texts back."""
        async with _Watch() as watch:
            request = self._translate(texts, watch.mailbox, options)
            await watch.until(request, lambda: request.finished)
        return self._translations(request, isinstance(texts, str))

    def translate_lines(self, lines: Iterable[str], **options: Any) -> Iterator[Translation]:
        """Translations of the lines of a file or of any other iterable, in their order, while more lines are read; takes the
        options of :meth:`translate` (a prefix for all). No more than 4,096 lines are under way, so a text may be endless."""
        waiting: collections.deque[Any] = collections.deque()
        try:
            for line in lines:
                waiting.append(self._translate(line[:-1] if isinstance(line, str) and line.endswith("\n") else line, None, options))
                while waiting and (len(waiting) > _AHEAD or waiting[0].finished):
                    _wait(waiting[0])
                    yield self._translations(waiting.popleft(), True)
            while waiting:
                _wait(waiting[0])
                yield self._translations(waiting.popleft(), True)
        finally:
            for request in waiting:
                request.cancel()

    def _translate(self, texts, mailbox, options):
        lines, named = _translate_arguments(texts, **options)
        return self._core.translate(lines, mailbox=mailbox, **named)

    def _translations(self, request, single):
        _raise(request)

        def made(text, score, log_probability, ids, each, others=()):
            return Translation(text, score, log_probability, self._core.pieces(ids), each, tuple(made(*o) for o in others))

        found = [made(*best, others) for best, *others in request.translations()]
        return found[0] if single else found

    # --- generation

    @overload
    def generate(self, prompts: str, **options: Any) -> Generation: ...
    @overload
    def generate(self, prompts: Sequence[str], **options: Any) -> list[Generation]: ...
    def generate(self, prompts, **options):
        """Continues texts.

        Parameters
        ----------
        prompts : str, or list of str
            The result is one :class:`Generation`, or a list. Equal prompts of one list are continued differently.
        max_tokens : int
            Tokens to add at most.
        temperature : float
            0: always the likeliest token.
        top_k : int
            Draw among the k likeliest tokens; 0: all.
        top_p : float
            Draw among the likeliest tokens with this share.
        min_p : float
            Draw among tokens at least so many times as likely as the likeliest; 0: all.
        seed : int, optional
            Start of the random numbers: the same seed draws the same tokens. Left out: a new one.
        stop : str, or list of str
            End before this text.
        repetition_penalty, no_repeat_ngram, min_tokens
            As in :meth:`translate`, the prompt counted; no end before min_tokens.
        presence_penalty, frequency_penalty : float
            Taken from the logits of what was said, the prompt not counted: once, and once for each time.

        Raises
        ------
        As :meth:`translate`.

        Example
        -------
        >>> model.generate("Once upon a time", temperature=0, max_tokens=16).text    # doctest: +SKIP
        """
        request = self._generate(prompts, None, False, options)
        _wait(request)
        return _generations(request, isinstance(prompts, str))

    async def generate_async(self, prompts: Union[str, Sequence[str]], **options: Any) -> Any:
        """:meth:`generate` for ``await``. A task that is cancelled ends its generation."""
        async with _Watch() as watch:
            request = self._generate(prompts, watch.mailbox, False, options)
            await watch.until(request, lambda: request.finished)
        return _generations(request, isinstance(prompts, str))

    def stream(self, prompt: str, **options: Any) -> TextStream:
        """The text that :meth:`generate` adds to one prompt, in parts as they come: ``for part in model.stream(...)``.
        No part ends within a character, or holds what may begin a stop string."""
        return TextStream(self._generate(_text("prompt", prompt), None, True, options))

    async def stream_async(self, prompt: str, **options: Any) -> AsyncIterator[str]:
        """:meth:`stream` for ``async for``."""
        async with _Watch() as watch:
            request = self._generate(_text("prompt", prompt), watch.mailbox, True, options)
            pieces: list[Any] = []

            def came() -> bool:
                ended = request.finished
                pieces.extend(request.take_pieces())
                return bool(pieces) or ended

            while True:
                await watch.until(request, came)
                if not pieces:
                    break
                for _, text in pieces:
                    yield text
                pieces.clear()
            _raise(request)

    # --- scores

    @overload
    def score(self, texts: str, **options: Any) -> Score: ...
    @overload
    def score(self, texts: Sequence[str], **options: Any) -> list[Score]: ...
    def score(self, texts, **options):
        """The log-probabilities of the tokens of texts, each given those before it, from the model's own distribution.

        Parameters
        ----------
        texts : str, or list of str
            The result is one :class:`Score`, or a list.
        likeliest : int
            So many of the likeliest tokens in each place, at most 1,024.

        Raises
        ------
        As :meth:`translate`; ``ValueError`` also for a text without a token.

        Example
        -------
        >>> -model.score("To be, or not to be").log_probability    # doctest: +SKIP
        """
        request = self._score(texts, None, **options)
        _wait(request)
        return _scores(request, isinstance(texts, str))

    async def score_async(self, texts: Union[str, Sequence[str]], **options: Any) -> Any:
        """:meth:`score` for ``await``."""
        async with _Watch() as watch:
            request = self._score(texts, watch.mailbox, **options)
            await watch.until(request, lambda: request.finished)
        return _scores(request, isinstance(texts, str))

    def _score(self, texts, mailbox, *, likeliest=0):
        return self._core.score(_texts("texts", texts), likeliest=_whole("score", "likeliest", likeliest, 0, 1024), mailbox=mailbox)

    def _generate(self, prompts, mailbox, keep_pieces, options):
        texts, named = _generate_arguments(prompts, **options)
        return self._core.generate(texts, keep_pieces=keep_pieces, mailbox=mailbox, **named)


def load(folder: Any, *, weights: Optional[Sequence[float]] = None, device: str = "auto", precision: str = "auto",
         adapter: Any = None, ids: bool = False, same_bits: bool = False, sequences: int = 8, max_length: int = 2048) -> Model:
    """Opens a model: a run of ``saturate train``, or a Hugging Face folder; or several that translate as one.

    Parameters
    ----------
    folder : path, or list of paths
        As ``saturate translate --model`` takes it. A list, of up to 8: models of one vocabulary, of which a token is worth the mean of
        the log-probabilities that they give it.
    weights : list of float, optional
        What each of several models counts; left out: all alike. They are made to add up to 1.
    device : str
        "auto" (a GPU where one is), "cpu", "cuda" or "cuda:N". CPU threads: as many as there are CPUs, or ``SATURATE_THREADS``.
    precision : str
        "auto", "fp32", "bf16", "fp16" (GPUs alone), or "int8" (the CPU alone).
    adapter : path, optional
        Folder of an adapter of that model, as PEFT or ``saturate train --lora`` writes it.
    ids : bool
        Texts are token ids, as another program's tokenizer made them ("17 4 9 0"), the end of a source included; no tokenizer is needed.
    same_bits : bool
        On a GPU the same result to the last bit, whatever is computed beside it; the CPU is so without.
    sequences, max_length : int
        Of a language model: texts continued side by side, and most tokens of prompt and continuation together.

    Raises
    ------
    OSError, ValueError
        No folder there, or files that are no model; the message says what and where. Models that cannot be one: it names what differs.
    MemoryError
        There is no room for the weights.
    """
    return Model(folder, weights, device, precision, adapter, ids, same_bits, sequences, max_length)


def _close(model: Any) -> None:
    try:
        model.close()
    except NotImplementedError:
        pass  # a fork: the threads are the parent's


# --- arguments


def _whole(op: str, name: str, value: Any, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"[{op}] {name} is {value!r}; it must be an int")
    if not least <= value <= most:
        raise ValueError(f"[{op}] {name} is {value}; it must be in {least} .. {most}")
    return value


def _real(op: str, name: str, value: Any, least: float, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"[{op}] {name} is {value!r}; it must be a number")
    if not least <= value <= most:
        raise ValueError(f"[{op}] {name} is {value}; it must be in {least:g} .. {most:g}")
    return float(value)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} cannot be written as UTF-8: {error.reason} at character {error.start}") from None
    return value


def _folders(value: Any) -> list[str]:
    if isinstance(value, (str, bytes, os.PathLike)):
        return [os.fsdecode(value)]
    if isinstance(value, dict) or not isinstance(value, collections.abc.Iterable):
        raise TypeError(f"[load] folder is of type {type(value).__name__}; it must be a path, or a list of them")
    paths = [os.fsdecode(one) for one in value]
    if not paths:
        raise ValueError("[load] folder is an empty list; give one model, or several that translate as one")
    return paths


def _weights(value: Any, models: int) -> list[float]:
    if value is None:
        return []
    if isinstance(value, (str, bytes, dict)) or not isinstance(value, collections.abc.Iterable):
        raise TypeError(f"[load] weights is of type {type(value).__name__}; it must be a list of numbers")
    weights = [_real("load", f"weights[{i}]", one, 1e-6, 1e6) for i, one in enumerate(value)]
    if len(weights) != models:
        raise ValueError(f"[load] weights has {len(weights)} numbers and there are {models} models; give one for each")
    return weights


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [_text(name, value)]
    if isinstance(value, (bytes, bytearray, dict)) or not isinstance(value, collections.abc.Iterable):
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be a str, or a list of them")
    return [_text(f"{name}[{i}]", one) for i, one in enumerate(value)]


def _translate_arguments(texts, *, beam=None, nbest=1, length_penalty=None, prefix=None, repetition_penalty=1.0, no_repeat_ngram=0,
                         min_length=0, max_length=0):
    op = "translate"
    lines = _texts("texts", texts)
    for i, line in enumerate(lines):
        if "\n" in line:
            raise ValueError(f"texts[{i}] has several lines; give one sentence in each text")
    prefixes = None
    if prefix is not None:
        prefixes = [_text("prefix", prefix)] * len(lines) if isinstance(prefix, str) else _texts("prefix", prefix)
        if len(prefixes) != len(lines):
            raise ValueError(f"prefix has {len(prefixes)} texts and there are {len(lines)}; give one for each, or a str for all")
    most = 1 << 20
    return lines, dict(
        beam=None if beam is None else _whole(op, "beam", beam, 1, 64), nbest=_whole(op, "nbest", nbest, 1, 64),
        length_penalty=None if length_penalty is None else _real(op, "length_penalty", length_penalty, 0, 10), prefixes=prefixes,
        repetition_penalty=_real(op, "repetition_penalty", repetition_penalty, 0.01, 100),
        no_repeat_ngram=_whole(op, "no_repeat_ngram", no_repeat_ngram, 0, most), min_length=_whole(op, "min_length", min_length, 0, most),
        max_length=_whole(op, "max_length", max_length, 0, most))


def _generate_arguments(prompts, *, max_tokens=128, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=None, stop=(),
                        repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, no_repeat_ngram=0, min_tokens=0):
    op, most = "generate", 1 << 20
    stops = _texts("stop", stop)
    if "" in stops:
        raise ValueError("stop holds an empty text, and every text ends there; leave it out")
    if isinstance(min_tokens, int) and isinstance(max_tokens, int) and min_tokens > max_tokens:
        raise ValueError(f"[{op}] min_tokens is {min_tokens} and max_tokens {max_tokens}: raise the second or lower the first")
    return _texts("prompts", prompts), dict(
        max_tokens=_whole(op, "max_tokens", max_tokens, 1, most), temperature=_real(op, "temperature", temperature, 0, 100),
        top_k=_whole(op, "top_k", top_k, 0, most), top_p=_real(op, "top_p", top_p, 1e-6, 1),
        min_p=_real(op, "min_p", min_p, 0, 1), presence_penalty=_real(op, "presence_penalty", presence_penalty, -100, 100),
        frequency_penalty=_real(op, "frequency_penalty", frequency_penalty, -100, 100),
        seed=None if seed is None else _whole(op, "seed", seed, 0, 2**64 - 1), stop=stops,
        repetition_penalty=_real(op, "repetition_penalty", repetition_penalty, 0.01, 100),
        no_repeat_ngram=_whole(op, "no_repeat_ngram", no_repeat_ngram, 0, most), min_tokens=_whole(op, "min_tokens", min_tokens, 0, most))


# --- requests


def _raise(request: Any) -> None:
    if request.error:
        raise RuntimeError(request.error)


def _wait(request: Any) -> None:
    try:
        while not request.wait(_WAIT_SECONDS, False):
            pass
    except BaseException:  # Ctrl-C
        request.cancel()
        raise


def _generations(request: Any, single: bool) -> Any:
    _raise(request)
    found = [Generation(*one) for one in request.generations()]
    return found[0] if single else found


def _scores(request: Any, single: bool) -> Any:
    _raise(request)
    found = [Score(sum(each[1:]), tokens, ids, each, likeliest) for tokens, ids, each, likeliest in request.scores()]
    return found[0] if single else found


class _Loop:
    """What one event loop watches: a descriptor that is readable when something has come of one of its requests."""

    of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Loop] = weakref.WeakKeyDictionary()

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.mailbox = core().Mailbox()
        self.events: dict[int, asyncio.Event] = {}
        loop.add_reader(self.mailbox.descriptor, self._came)

    def _came(self) -> None:
        for number in self.mailbox.take():
            if (event := self.events.get(number)) is not None:
                event.set()


class _Watch:
    """The running loop's mailbox, for one request that lives no longer than the ``async with``."""

    async def __aenter__(self) -> _Watch:
        loop = asyncio.get_running_loop()
        if loop not in _Loop.of_loops:
            _Loop.of_loops[loop] = _Loop(loop)
        self._loop, self._request = _Loop.of_loops[loop], None
        self.mailbox = self._loop.mailbox
        return self

    async def until(self, request: Any, came: Callable[[], bool]) -> None:
        self._request = request
        event = self._loop.events.setdefault(request.number, asyncio.Event())
        while not came():
            await event.wait()
            event.clear()

    async def __aexit__(self, *_: object) -> None:
        if self._request is not None:
            self._request.cancel()  # of no effect on one that has ended
            self._loop.events.pop(self._request.number, None)
