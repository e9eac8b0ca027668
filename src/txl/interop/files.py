"""Files of tensors: read without running any code in them, written whole or not at all."""

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
    """A file of `torch.save` holds more than tensors, so reading it could run code."""

    def __init__(self, path: Path, found: str) -> None:
        state = f"{path.stem}-state.pt"
        super().__init__(
            f"{path} holds a Python object ({found}) and not only tensors; reading it could run code, so it "
            "is not read. If it is a whole model, write its tensors in the environment that made it:\n"
            f'    import torch; model = torch.load("{path.name}")\n'
            f'    torch.save(model.state_dict(), "{state}")\n'
            f"then pass {state}"
        )


class NamesError(ValueError):
    """Some parameters of the model are missing, or some given are unknown; nothing was loaded."""

    def __init__(self, missing: set[str], unknown: set[str]) -> None:
        lists = {"missing": missing, "unknown": unknown}
        parts = [f"{kind}: {', '.join(sorted(names))}" for kind, names in lists.items() if names]
        super().__init__("the parameters do not fit the model; " + "; ".join(parts))


def read_pickle(path: Path) -> Any:
    """Return the tensors and plain containers in a file of `torch.save`, on the CPU.

    Raises:
        PickledObjectError: the file holds other objects. None of them is created.
        ValueError: the file is damaged, or of another format.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        try:
            return torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # a file of another format can raise anything, OSError too
            found = re.search(r"GLOBAL (\S+)", str(error))
            if isinstance(error, pickle.UnpicklingError) and found:
                raise PickledObjectError(path, found[1]) from None
            # Torch wraps the reason in advice, such as to read the file without this protection.
            line = str(error).rpartition("WeightsUnpickler error: ")[2].partition("\n")[0]
            reason = f"{type(error).__name__} {line.partition('. ')[0]}".strip()
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
        found = f"these are not tensors: {', '.join(others)}" if others else "it is empty"
        raise ValueError(f"{path} holds no state_dict, which is a dict of tensors by name; {found}")
    return dict(state)


def check_parameters(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Raise NamesError or ValueError unless tensors have the names and shapes of a model's own."""
    missing, unknown = own.keys() - tensors.keys(), tensors.keys() - own.keys()
    if missing or unknown:
        raise NamesError(missing, unknown)
    wrong = [
        f"{name} has the shape {list(tensors[name].shape)}, the model's has {list(tensor.shape)}"
        for name, tensor in own.items()
        if tensors[name].shape != tensor.shape
    ]
    if wrong:
        raise ValueError(f"the parameters do not fit the model; {'; '.join(wrong)}")


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
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write a `.safetensors` file atomically.

    Raises:
        OSError: the folder does not exist or cannot be written. The file that was at the path is unchanged.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} does not exist; make it first")
    try:
        with atomic_path(path) as part:
            save_file(dict(tensors), part, metadata=dict(metadata))
    except SafetensorError as error:
        raise OSError(f"{path} cannot be written: {error}") from error
