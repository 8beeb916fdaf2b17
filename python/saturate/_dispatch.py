# SPDX-License-Identifier: Apache-2.0
"""Which implementation takes the arguments of a call: PyTorch's or the one for any DLPack array."""


def _is_tensor(array):
    # By name, not by a look into sys.modules for PyTorch: over that torch.compile may fail, as it imports while it traces.
    return any(kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(array).__mro__)


def are_torch(op, arrays, required):
    """Whether the arrays (name: array, or None if not in `required`) are PyTorch tensors.

    Raises TypeError when they are of both kinds, or one is no array at all.
    """
    kinds = {}
    for name, array in arrays.items():
        if array is None and name not in required:
            continue
        if _is_tensor(array):
            kinds[name] = True
        elif hasattr(array, "__dlpack__"):
            kinds[name] = False
        else:
            raise TypeError(
                f"[{op}] {name} is of type {type(array).__name__}; it must be a torch.Tensor or an array that "
                "speaks DLPack, such as NumPy's"
            )
    if len(set(kinds.values())) > 1:
        tensors = ", ".join(name for name, is_tensor in kinds.items() if is_tensor)
        others = ", ".join(name for name, is_tensor in kinds.items() if not is_tensor)
        raise TypeError(
            f"[{op}] {tensors} are PyTorch tensors and {others} are not; make all of one kind (torch.from_dlpack, "
            "numpy.from_dlpack)"
        )
    return kinds[required[0]]
