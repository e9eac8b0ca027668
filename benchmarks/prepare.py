"""How fast text is prepared, and in how much memory: `python benchmarks/prepare.py`.

Makes a text of 1 GB in a temporary folder, prepares it as bytes and as words with `txl prepare`, each from
nothing and again, and prints megabytes a second and the largest resident memory, that of all processes
together. The text repeats the packaged Wikipedia sample; in each repetition some words get a number, so that
the vocabulary goes on growing as a real one does.

    python benchmarks/prepare.py [--megabytes 1000] [--json prepare.json] [--folder /tmp]
"""

from __future__ import annotations

import argparse
import bz2
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

GOALS = {"byte": 60.0, "word": 8.0}  # megabytes a second
CHANGED = 400  # one in so many words gets a number


def write_text(file: Path, size: int) -> None:
    """Write a text of at least `size` bytes."""
    package = Path(importlib.util.find_spec("gensim").submodule_search_locations[0])
    sample = next((package / "test" / "test_data").glob("enwiki-latest-pages-articles1.xml*-shortened.bz2"))
    words = bz2.decompress(sample.read_bytes()).split(b" ")
    with file.open("wb") as target:
        repetition = 0
        while target.tell() < size:
            changed = list(words)
            begin = repetition % CHANGED
            changed[begin::CHANGED] = [b"%b%d" % (word, repetition) for word in changed[begin::CHANGED]]
            target.write(b" ".join(changed))
            repetition += 1


def resident(process: int) -> int:
    """Return the resident memory in bytes of a process and its children, what they share counted in each."""
    total, waiting = 0, [process]
    while waiting:
        one = waiting.pop()
        try:
            fields = Path(f"/proc/{one}/statm").read_text().split()
            waiting += map(int, Path(f"/proc/{one}/task/{one}/children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
    return total


def prepared(file: Path, unit: str, cache: Path) -> dict:
    """Return the seconds and the memory of one `txl prepare`."""
    command = [sys.executable, "-m", "txl", "prepare", "--json", "data=text", f"data.path={file}"]
    command += [f"data.unit={unit}", f"data.cache={cache}"]
    began, highest = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        done = threading.Event()
        while process.poll() is None:
            highest = max(highest, resident(process.pid))
            done.wait(0.02)
        seconds = time.perf_counter() - began
        report = json.loads(process.stdout.read() or "{}")
    if process.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {process.returncode}")
    return {"seconds": seconds, "peak_memory_bytes": highest, "vocabulary": report["vocabulary"]}


def main() -> None:
    """Measure, print a table and write it as JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the text (1000)")
    parser.add_argument("--folder", type=Path, help="where there is room for three times that")
    parser.add_argument("--json", type=Path, help="a file to write the numbers to")
    arguments = parser.parse_args()
    measured = {"cpus": os.cpu_count(), "units": {}}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        file, cache = Path(folder) / "text.xml", Path(folder) / "cache"
        write_text(file, arguments.megabytes * 10**6)
        measured["bytes"] = file.stat().st_size
        time.sleep(2.5)  # a file is only known again when it has not just been written
        for unit, goal in GOALS.items():
            first, again = prepared(file, unit, cache), prepared(file, unit, cache)
            speed = measured["bytes"] / 1e6 / first["seconds"]
            measured["units"][unit] = {
                "megabytes_per_second": speed,
                "goal": goal,
                "first": first,
                "again": again,
            }
            print(
                f"{unit}s: {speed:.1f} MB/s (at least {goal:.0f}), {first['seconds']:.1f} s for "
                f"{measured['bytes'] / 1e6:,.0f} MB, {first['vocabulary']:,} different; peak memory "
                f"{first['peak_memory_bytes'] / 1e6:,.0f} MB (below 1,000); again {again['seconds']:.2f} s "
                "(below 1)"
            )
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
