"""The figures of `txl recl` are made from its file alone, the same bytes from the same numbers."""

import json

from txl.report.figures.recl import draw_recl


def a_model(name, cap=None):
    effective = [{"r": share, "differences": [5.0 / share, 1.0]} for share in (0.1, 1.0)]
    return {"name": name, "cap": cap, "losses": [3.2, 3.1, 3.0], "effective": effective}


def test_both_figures_are_drawn_as_png_and_pdf(tmp_path):
    result = {
        "data": {"name": "sotu", "split": "test", "unit": "word"},
        "step": 100,
        "lengths": [100, 200, 300],
        "positions": 2000,
        "r": [0.1, 1.0],
        "models": [a_model("XL"), a_model("vanilla", 128), *(a_model(f"more {n}") for n in range(8))],
    }
    (tmp_path / "recl.json").write_text(json.dumps(result))
    paths = draw_recl(tmp_path / "recl.json")
    assert [path.name for path in paths] == [
        "recl_gain.png",
        "recl_gain.pdf",
        "recl_perplexity.png",
        "recl_perplexity.pdf",
    ]
    first = [path.read_bytes() for path in paths]
    assert all(path.parent == tmp_path / "figures" for path in paths)
    assert first[0].startswith(b"\x89PNG")
    assert first[1].startswith(b"%PDF")
    assert [path.read_bytes() for path in draw_recl(tmp_path / "recl.json")] == first
