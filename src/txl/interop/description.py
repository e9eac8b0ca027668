"""The description of a model: all that is needed to build it, in plain values that JSON can represent.

    {"model": {"_target_": "txl.model.TransformerXL", "vocabulary": 27, "n_layer": 2, …},
     "position": {"_target_": "txl.model.RelativePosition", "key_length": 32, "clamp_length": null, …},
     "reading": {"memory_length": 16, "attention_length": null, "clamp_length": null},
     "vocabulary": {"unit": "char", "lines": ["U+0020", …]},
     "data": {"sha256": "…", "settings": {"_target_": "txl.data.text", "path": "…", …}}}

`model` and `position` are the groups of a run's settings, completed by the number of tokens and the largest
number of keys. The other parts are left out if the source does not know them: `reading` is how a text is
read, with its `stride` if segments overlap and the `border` of documents if none sees another; `vocabulary`
lists the tokens (as `Vocabulary.lines` writes them); `data` is the corpus.
"""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from txl.model import PositionEncoding, TransformerXL

REQUIRED, OPTIONAL = ("model", "position"), ("reading", "vocabulary", "data")


def build(description: Mapping[str, Any], trust: bool = False) -> TransformerXL:
    """Return the model that is described, with random parameters.

    Without `trust` each `_target_` must be a class of `txl.model`, because importing any other module runs
    it.

    Raises:
        ValueError: a part is missing or unknown, or a class is not trusted or does not take the arguments.
    """
    parts = set(description) if isinstance(description, Mapping) else set()
    if not set(REQUIRED) <= parts <= {*REQUIRED, *OPTIONAL}:
        raise ValueError(
            f"the description of a model has the parts {', '.join(REQUIRED)} and optionally "
            f"{', '.join(OPTIONAL)}, not {', '.join(sorted(parts)) or 'none'}"
        )
    position = _bind_arguments(description["position"], "position", PositionEncoding, trust)
    model = _bind_arguments(description["model"], "model", TransformerXL, trust)
    try:
        return model(position=position)
    except TypeError as error:
        raise ValueError(f"the description of the model does not fit its class: {error}") from error


def _bind_arguments(group: Any, name: str, kind: type, trust: bool) -> partial:
    if not isinstance(group, Mapping) or not isinstance(group.get("_target_"), str):
        raise ValueError(f"{name}: expected arguments and a _target_, the import path of a class")
    path = group["_target_"]
    module, _, attribute = path.rpartition(".")
    if not trust and not f"{module}.".startswith("txl.model."):
        raise ValueError(
            f"{name}: {path} is not a class of txl.model, and importing it would run its code; pass "
            "trust=True if the checkpoint and the code are your own"
        )
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: {path} cannot be imported: {error}") from error
    if not (isinstance(target, type) and issubclass(target, kind)):
        raise ValueError(f"{name}: {path} is not a subclass of {kind.__name__}")
    return partial(target, **{key: value for key, value in group.items() if key != "_target_"})
