"""The figures and the page of `txl attention`, from files alone."""

import base64
import json
import re

import numpy as np
import pytest

from txl.report.figures.attention import (
    Maps,
    draw_attention,
    heads_figure,
    make_figures,
    mean_figure,
    top_of_memory,
)
from txl.report.render.attention_page import write_page

LAYERS, HEADS, M, L = 2, 3, 8, 5
TOKENS = ["␣", "$x$", "</script>", "字", "<b>", "a&b", "\\xff", "_", "^", "%", "é", "U+0001", "end"]


def write(folder, terms=("a", "d"), **changes):
    """What the verb writes, with random numbers; return the JSON's path."""
    random = np.random.default_rng(0)
    means = random.dirichlet(np.ones(M + 1), size=(1 + len(terms), LAYERS * HEADS))
    arrays = {f"mean_{name}": mean for name, mean in zip(("attention", *terms), means, strict=True)}
    arrays["segment_attention"] = random.random((2, L, M + L), dtype=np.float32)
    result = {
        "name": "run",
        "split": "valid",
        "unit": "word",
        "complete": True,
        "tokens": 12345,
        "layers": LAYERS,
        "heads": HEADS,
        "memory_length": M,
        "terms": list(terms),
        "terms_note": "a note",
        "segment": {
            "position": 77,
            "tokens": TOKENS,
            "heads": [{"head": 4, "why": "most uniform"}, {"head": 0, "why": "most sparse"}],
            "top_share": 0.2,
        },
    }
    path = folder / "attention-abc.json"
    path.write_text(json.dumps(result | changes))
    np.savez(path.with_suffix(".npz"), **arrays)
    return path


def content_of(page) -> dict:
    return json.loads(re.search(r"const maps = (.*);\n", page.read_text("utf-8")).group(1))


def test_every_figure_is_drawn_and_the_same_numbers_give_the_same_bytes(tmp_path):
    path = write(tmp_path)
    drawn = draw_attention(path, tmp_path / "new" / "figures")
    names = [f"attention-abc-{name}" for name in ("mean", "heads", "terms")]
    assert [file.name for file in drawn] == [f"{name}.{kind}" for name in names for kind in ("png", "pdf")]
    for file, again in zip(drawn, draw_attention(path, tmp_path / "again"), strict=True):
        assert file.read_bytes().startswith(b"\x89PNG" if file.suffix == ".png" else b"%PDF")
        assert file.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("terms", [("a",), ("a", "b"), ("a", "b", "c", "d"), ()])
def test_there_is_a_panel_for_each_term_that_there_is(tmp_path, terms):
    figures = make_figures(Maps.read(write(tmp_path, terms)))
    assert list(figures) == ["mean", "heads", "terms"][: 3 if terms else 2]
    if terms:
        titles = [axes.get_title(loc="left") for axes in figures["terms"].axes]
        assert [title[1] for title in titles if title] == list(terms)


def test_the_rows_of_the_map_are_the_heads_and_its_right_end_is_the_token_itself(tmp_path):
    maps = Maps.read(write(tmp_path))
    (image,) = mean_figure(maps).axes[0].images
    np.testing.assert_array_equal(image.get_array(), maps.means["attention"][:, ::-1])
    assert image.get_extent() == [M + 0.5, -0.5, LAYERS * HEADS - 0.5, -0.5]


def test_the_memory_that_gets_most_is_red_and_nothing_else(tmp_path):
    maps = Maps.read(write(tmp_path))
    for axes, attention in zip(heads_figure(maps).axes, maps.arrays["segment_attention"], strict=True):
        sums = [sum(float(row[key]) for row in attention) for key in range(M)]
        expected = sorted(sorted(range(M), key=lambda key: -sums[key])[:2])  # 20 % of 8, rounded up
        colors = [label.get_color() for label in axes.get_xticklabels()]
        assert [key for key, color in enumerate(colors) if color == "#c1121f"] == expected
        labels = [label.get_text() for label in axes.get_xticklabels()]
        assert labels == ["□" if token == "字" else token for token in TOKENS]


@pytest.mark.parametrize(("share", "expected"), [(0.2, [2]), (0.5, [0, 2]), (1.0, [0, 1, 2, 3])])
def test_the_top_of_the_memory(share, expected):
    attention = np.array([[0.2, 0.1, 0.4, 0.0, 0.9], [0.3, 0.1, 0.3, 0.1, 0.9]])
    assert top_of_memory(attention, 4, share).tolist() == expected


def test_an_interrupted_measurement_says_so_in_every_headline(tmp_path):
    maps = Maps.read(write(tmp_path, complete=False))
    assert maps.headline == "INTERRUPTED: run, 2 layers × 3 heads, mean over 12,345 words of valid"
    assert "INTERRUPTED" in mean_figure(maps).axes[0].get_title(loc="left")


def test_the_page_holds_the_numbers_and_asks_for_nothing(tmp_path):
    path = write(tmp_path)
    page = write_page(path, tmp_path / "figures")
    assert page == tmp_path / "figures" / "attention-abc.html"
    text = page.read_text("utf-8")
    assert not re.search(r"""https?:|//[a-z]|src\s*=|@import|url\(|href="(?!data:)""", text)
    assert text.count("</script>") == 1  # the token of that name ends nothing
    content, maps = content_of(page), Maps.read(path)
    assert content["result"] == maps.result
    for name, packed in content["means"].items():
        values = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])
        np.testing.assert_array_equal(values, maps.means[name].astype(np.float32))
    assert content["top"][1] == top_of_memory(maps.arrays["segment_attention"][1], M, 0.2).tolist()
    assert write_page(path, tmp_path / "again").read_bytes() == page.read_bytes()
