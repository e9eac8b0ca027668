"""The page of `txl attention`: one self-contained HTML file for exploring heads."""

import base64
import html
from pathlib import Path
from typing import Any

import numpy as np

from txl.report.figures.attention import NAMES, Maps, top_of_memory
from txl.report.render.environment import script_json, template


def write_page(path: Path, folder: Path) -> Path:
    """Write `<name of the JSON>.html` into `folder` and return its path.

    Equal numbers give equal bytes.

    Args:
        path: the JSON of `txl attention`, with its arrays beside it.
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
    page = folder / f"{path.stem}.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    data = script_json(content, sort_keys=True)
    page.write_text(template("attention.html", html.escape).render(maps=data), "utf-8")
    return page


def _packed(values: np.ndarray) -> dict[str, Any]:
    """Return the shape and the base64 of the float32 bytes, a third of the size of decimal digits."""
    data = base64.b64encode(values.astype("<f4").tobytes()).decode()
    return {"shape": list(values.shape), "data": data}
