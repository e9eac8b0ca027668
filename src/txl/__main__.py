"""`python -m txl VERB …`, also installed as `txl`: everything beside training."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from txl.launch.lifeline import hold_lifeline
from txl.verbs import attention, convert, describe, evaluate, generate, parity, prepare, recl, report, speed

VERBS = (prepare, describe, evaluate, recl, speed, attention, generate, parity, convert, report)


def main(words: list[str] | None = None) -> int:
    """Run one verb and return its exit code.

    Returns:
        0 for done, 1 for a failed check or wrong input, 130 after Ctrl-C and 143 after SIGTERM.
    """
    hold_lifeline()  # of a sweep that measures
    parser = argparse.ArgumentParser(prog="txl", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    arguments, more = parser.parse_known_args(words)
    if hasattr(arguments, "overrides") and not any(word.startswith("-") for word in more):
        arguments.overrides += more  # overrides after an option
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    with _terminated_as_interrupted() as received:
        code = _code(arguments)
    return 128 + received[0] if code == 130 and received else code


def _code(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit code, what went wrong said in a line."""
    try:
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (RuntimeError, MemoryError) as error:
        from txl.training.hardware import failure_reason

        if not (said := failure_reason(error).splitlines()[0]).startswith("out of memory"):
            raise
        print(f"error: {said}; use a smaller batch_size or shorter lengths", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


@contextmanager
def _terminated_as_interrupted() -> Iterator[list[int]]:
    """Inside, SIGTERM is what Ctrl-C is, so that it leaves as much; give the list of those that came."""
    received: list[int] = []

    def interrupt(number: int, _: object) -> None:
        received.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # the only one that may set handlers
        yield received
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield received
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
