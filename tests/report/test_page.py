"""What people see: texts with signs that mean something to Markdown, LaTeX and HTML, and the page."""

import json
import re
from html.parser import HTMLParser

from report.made_up import TABLE, results, write_run, write_sweep
from txl.report import write_tables

NASTY = "<b>50 % of a_b & c|d</b> {x} $y$ #1 \\z ~^ `q` *w*"


class Page(HTMLParser):
    """Collects the cells of tables, the texts and the addresses that a page names."""

    def __init__(self, text):
        super().__init__()
        self.cells, self.names, self.texts, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.names += [value for name, value in attributes if name in ("src", "href", "action")]
        if tag in ("td", "th", "script", "style", "b"):
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_endtag(self, tag):
        if self.open and tag == self.open[-1]:
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data
        self.texts.append(data)


def nasty_sweep(directory):
    table = json.loads(json.dumps(TABLE))
    table["rows"]["xl"]["label"] = table["title"] = NASTY
    table["rows"]["shaw"]["label"] = "</script>"
    failed = results(
        seed=1, status="failed", error=f"{NASTY}\n\n</script><script>alert(1)</script>\nthird {{{{DATA}}}}"
    )
    runs = {"xl": [results(2.27, 1), results(2.28, 2)], "shaw": [failed]}
    return write_sweep(directory, runs, table)


def test_the_page_stands_alone_and_escapes(tmp_path):
    write_tables(nasty_sweep(tmp_path))
    text = (tmp_path / "report.html").read_text("utf-8")
    page = Page(text)
    assert NASTY in page.cells
    assert "2.275 ± 0.007" in page.cells
    assert "b" not in page.open
    assert text.count("<script") == text.count("</script>") == 2
    assert not page.names
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)|fetch\(", text)
    assert "third {{DATA}}" in text
    assert 'class="failed"' in text


def test_the_page_has_the_numbers_of_the_figures_with_and_without_logs(tmp_path):
    write_sweep(tmp_path, {"xl": [results(2.27, 1), results(2.28, 2)], "shaw": [results(status="failed")]})
    write_run(tmp_path / "xl" / "seed1", results(2.27, 1), curve=[3.0, 2.5, 2.27])
    write_tables(tmp_path)
    (first, second), (failed,) = (row["runs"] for row in figures(tmp_path)["rows"])
    assert first["curve"] == [[1000, 3.0], [2000, 2.5], [3000, 2.27]]
    assert second["curve"] == []
    assert first["trained"] == 128
    assert first["attention"][:2] == [[64, 2.27 + 0.05], [128, 2.27]]
    seconds, tokens = 0.5 + 64 / 100, 304_043
    assert first["cost"][0] == [64, 1e6 * seconds / tokens]
    assert failed["attention"] == failed["cost"] == []


def figures(directory):
    text = (directory / "report.html").read_text("utf-8")
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_markdown_keeps_its_columns_whatever_the_texts(tmp_path):
    write_tables(nasty_sweep(tmp_path))
    lines = (tmp_path / "table.md").read_text("utf-8").splitlines()
    grid = [line for line in lines if line.startswith("|")][:5]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in grid} == {13}
    assert "\\<b\\>50 % of a\\_b &amp; c\\|d\\</b\\>" in grid[2]
    (error,) = (line for line in lines if line.startswith("- shaw, seed 1"))
    assert "\\</script\\>" in error


def test_latex_escapes_what_means_something_to_it(tmp_path):
    write_tables(nasty_sweep(tmp_path))
    text = (tmp_path / "table.tex").read_text("utf-8")
    row = next(line for line in text.splitlines() if line.strip().startswith("xl &"))
    assert r"\textless{}b\textgreater{}50 \% of a\_b \& c\textbar{}d" in row
    assert r"\{x\} \$y\$ \#1 \textbackslash{}z \textasciitilde{}\textasciicircum{}" in row
    assert r"2.275 $\pm$ 0.007" in row
    for line in text.splitlines():
        if line.strip().startswith(("xl &", "shaw &", "no\\_recurrence &", "row &")):
            assert len(re.findall(r"(?<!\\)&", line)) in (2, 11)  # differences, results
    assert text.count("\\begin{") == text.count("\\end{")


def test_latex_has_minus_signs_and_says_how_runs_went_only_where_it_matters(tmp_path):
    runs = {"xl": [results(2.5)], "shaw": [results(2.25)], "no_recurrence": [results(2.75)]}
    write_tables(write_sweep(tmp_path / "whole", runs))
    text = (tmp_path / "whole" / "table.tex").read_text("utf-8")
    assert "& $-$0.250 &" in text
    assert "status" not in text
    assert "completed \\\\" not in text
    write_tables(write_sweep(tmp_path / "part", runs | {"shaw": [results(status="failed")]}))
    assert "& status" in (tmp_path / "part" / "table.tex").read_text("utf-8")


def test_a_long_error_is_shortened_to_one_line(tmp_path):
    failed = results(status="failed", error="first\nsecond " + "word " * 100)
    write_tables(write_sweep(tmp_path, {"xl": [failed]}))
    lines = (tmp_path / "table.md").read_text("utf-8").splitlines()
    (line,) = (line for line in lines if line.startswith("- xl, seed 1: failed: first second word"))
    assert line.endswith("…")
    assert len(line) < 200
