"""Files of tensors: read without running what they hold, written whole or not at all."""

import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from txl.records.files import atomic_path


class PickledObjectError(ValueError):
    """A file of `torch.save` that holds more than tensors: to read it would be to run it."""

    def __init__(self, path: Path, found: str) -> None:
        state = f"{path.stem}-state.pt"
        super().__init__(
            f"{path} holds a Python object ({found}) and not only tensors; reading it could run code, so it "
            "is not read. If it is a whole model, write its tensors in the environment that made it:\n"
            f'    import torch; model = torch.load("{path.name}")\n'
            f'    torch.save(model.state_dict(), "{state}")\n'
            f"and give {state}"
        )


def read_pickle(path: Path) -> Any:
    """Return what `torch.save` wrote: tensors and plain containers, on the CPU.

    Raises:
        PickledObjectError: the file holds other objects. None of them is created.
        ValueError: the file is damaged, or of another format.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # what is no such file can raise anything, OSError too
            found = re.search(r"GLOBAL (\S+)", str(error))
            if isinstance(error, pickle.UnpicklingError) and found:
                raise PickledObjectError(path, found[1]) from None
            # Torch wraps the reason in advice, such as to read the file without this protection.
            sentence = (
                str(error).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0].partition(". ")[0]
            )
            reason = f"{type(error).__name__} {sentence}".strip()
            raise ValueError(f"{path} is damaged or was not written by torch.save ({reason})") from error


def check_state(state: Any, path: Path) -> dict[str, Tensor]:
    """Return a state_dict as a plain dict.

    Raises:
        ValueError: it is not a dict of tensors by name.
    """
    if not isinstance(state, Mapping):
        raise ValueError(f"{path} holds a {type(state).__name__}, not a state_dict")
    others = [str(name) for name, value in state.items() if not isinstance(value, Tensor)]
    if others or not state:
        found = f"these are no tensors: {', '.join(others)}" if others else "it is empty"
        raise ValueError(f"{path} holds no state_dict, which is a dict of tensors by name; {found}")
    return dict(state)


def read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a `.safetensors` file.

    Raises:
        ValueError: the file is damaged, or of another format.
        OSError: it cannot be read.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a `.safetensors` file beside its place and rename it: nobody ever sees a part of it.

    Raises:
        OSError: the folder does not exist or cannot be written. What stood at the path is unchanged.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; make it first")
    try:
        with atomic_path(path) as part:
            save_file(dict(tensors), part, metadata=dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
