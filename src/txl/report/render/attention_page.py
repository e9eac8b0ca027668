"""The page of `txl attention`: one HTML file to look at heads in, without a network."""

from __future__ import annotations

import base64
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from txl.report.figures.attention import NAMES, Maps, top_of_memory

PLACE = "/*MAPS*/null"  # in attention.html, where the numbers go


def write_page(path: Path, folder: Path) -> Path:
    """Write `<name of the JSON>.html`, in which one can point at every number.

    Nothing in it comes from elsewhere. The same numbers give the same bytes.

    Args:
        path: the JSON of `txl attention`, its arrays beside it.
        folder: where the page goes; it is made if need be.

    Returns:
        The path of the page.
    """
    maps = Maps.read(path)
    result, segment = maps.result, maps.arrays["segment_attention"]
    share = result["segment"]["top_share"]
    content = {
        "result": result,
        "headline": maps.headline,
        "names": NAMES,
        "means": {name: _packed(values) for name, values in maps.means.items()},
        "segment": _packed(segment),
        "top": [top_of_memory(one, result["memory_length"], share).tolist() for one in segment],
    }
    # "<" would let a token of the text end the script.
    numbers = json.dumps(content, sort_keys=True).replace("<", "\\u003c")
    template = (files("txl.report.render") / "templates" / "attention.html").read_text("utf-8")
    page = Path(folder) / f"{Path(path).stem}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(template.replace(PLACE, numbers), "utf-8")
    return page


def _packed(values: np.ndarray) -> dict[str, Any]:
    """Return an array as its shape and the base64 of its float32 bytes, a third of what digits would need."""
    data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return {"shape": list(values.shape), "data": data}
