"""What it takes to build a model, in this package's terms: plain values that fit into JSON.

    {"model": {"_target_": "txl.model.TransformerXL", "vocabulary": 27, "n_layer": 2, …},
     "position": {"_target_": "txl.model.RelativePosition", "key_length": 32, "clamp_length": null, …},
     "reading": {"memory_length": 16, "attention_length": null, "clamp_length": null},
     "vocabulary": {"unit": "char", "lines": ["U+0020", …]},
     "data": {"sha256": "…", "settings": {"_target_": "txl.data.text", "path": "…", …}}}

`model` and `position` are the groups of a run's settings with what the program adds to them: the number of
tokens and the largest number of keys. `reading` says how the source reads a text, with its `stride` where the
segments overlap and the `border` that ends documents where none sees another; `vocabulary` which tokens there
are (as `Vocabulary.lines` writes them), `data` from which corpus; a source that does not know them leaves
them out.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from txl.model import PositionEncoding, TransformerXL

REQUIRED, OPTIONAL = ("model", "position"), ("reading", "vocabulary", "data")
OURS = "txl.model"


def build(description: Mapping[str, Any], trust: bool = False) -> TransformerXL:
    """Return the model that is described, its parameters random.

    Args:
        description: see above.
        trust: import whatever class a `_target_` names. Importing a module runs it: without `trust` only
            classes of `txl.model` may be named.

    Raises:
        ValueError: a part that is missing or not known, a class that is not trusted, arguments that it does
            not take.
    """
    parts = set(description) if isinstance(description, Mapping) else set()
    if not set(REQUIRED) <= parts <= {*REQUIRED, *OPTIONAL}:
        raise ValueError(
            f"the description of a model has the parts {', '.join(REQUIRED)} and perhaps "
            f"{', '.join(OPTIONAL)}, not {', '.join(sorted(parts)) or 'none'}"
        )
    position = _filled_in(description["position"], "position", PositionEncoding, trust)
    model = _filled_in(description["model"], "model", TransformerXL, trust)
    try:
        return model(position=position)
    except TypeError as error:
        raise ValueError(f"the description of the model does not fit its class: {error}") from error


def _filled_in(group: Any, name: str, kind: type, trust: bool) -> partial:
    """Return the class that a group names, with the group's arguments."""
    if not isinstance(group, Mapping) or not isinstance(group.get("_target_"), str):
        raise ValueError(f"{name}: expected arguments and a _target_, the import path of a class")
    path = group["_target_"]
    module, _, attribute = path.rpartition(".")
    if not trust and not f"{module}.".startswith(f"{OURS}."):
        raise ValueError(
            f"{name}: {path} is not a class of {OURS}, and importing it would run its code; pass trust=True "
            "if the checkpoint and the code are your own"
        )
    try:
        target = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{name}: {path} cannot be imported: {error}") from error
    if not (isinstance(target, type) and issubclass(target, kind)):
        raise ValueError(f"{name}: {path} is not a class of the kind {kind.__name__}")
    return partial(target, **{key: value for key, value in group.items() if key != "_target_"})
