# SPDX-License-Identifier: Apache-2.0
# Written by `saturate doctor --fix-trial` into a folder that comes first on PYTHONPATH for one run: counts what the program
# does of which there is a remedy, and changes what SATURATE_TRIAL names. Needs nothing but the standard library.
import importlib.machinery
import importlib.util
import inspect
import os
import sys

WANTED = os.environ.get("SATURATE_TRIAL", "").split()
WORKERS = int(os.environ.get("SATURATE_TRIAL_WORKERS", "0"))
told = set()


def tell(*words):
    """One line in the notes of the run, once in each process."""
    if words in told:
        return
    told.add(words)
    try:
        with open(os.environ["SATURATE_TRIAL_NOTES"], "a", encoding="utf8") as notes:
            notes.write(" ".join(map(str, words)) + "\n")
    except (OSError, KeyError):
        pass


def change_loaders(module):
    """torch.utils.data.DataLoader: the order of the samples stays, each worker draws random numbers of its own."""
    loader = module.DataLoader
    begin = loader.__init__
    signature = inspect.signature(begin)

    def __init__(self, *args, **kwargs):
        given = signature.bind(self, *args, **kwargs)
        values = given.arguments
        if isinstance(values["dataset"], module.IterableDataset):  # each worker would give all of it
            tell("loader", "iterable")
            return begin(self, *args, **kwargs)
        workers = values.get("num_workers", 0)
        tell("loader", workers, "persistent" if values.get("persistent_workers") else "new")
        if "loader" in WANTED:
            values["num_workers"] = max(workers, WORKERS)
            values["persistent_workers"] = True
        if "pin" in WANTED:
            values["pin_memory"] = True
        return begin(*given.args, **given.kwargs)

    loader.__init__ = __init__


def keep_memory(module):
    """torch.cuda.empty_cache: memory that the allocator gives back each step it has to take again."""
    give_back = module.empty_cache

    def empty_cache():
        tell("empty_cache")
        if "keep" not in WANTED:
            give_back()

    module.empty_cache = empty_cache


CHANGES = {"torch.utils.data.dataloader": change_loaders, "torch.cuda.memory": keep_memory}


class Importer:
    """Applies a change when its module has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name not in CHANGES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None and finder is not self else None
            if spec is not None and spec.loader is not None:
                run = spec.loader.exec_module

                def exec_module(module):
                    run(module)
                    CHANGES[name](module)

                spec.loader.exec_module = exec_module
                return spec
        return None


def run_hidden():
    """The sitecustomize of this Python itself, which this one stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    others = [place for place in sys.path if os.path.abspath(place) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


tell("python")
sys.meta_path.insert(0, Importer())
run_hidden()
