"""`python -m txl VERB …`, also installed as `txl`: everything beside training."""

import argparse
import signal
import sys

from txl.launch.processes import hold_lifeline
from txl.launch.stop import StopRequest, end_at_once
from txl.verbs import attention, convert, describe, evaluate, generate, parity, prepare, recl, report, speed

VERBS = (prepare, describe, evaluate, recl, speed, attention, generate, parity, convert, report)


def main(words: list[str] | None = None) -> int:
    """Run one verb and return its exit code.

    Returns:
        0 for success, 1 for a failed check or wrong input, 130 after Ctrl-C and 143 after SIGTERM.
    """
    hold_lifeline()  # of a sweep that measures its models
    parser = argparse.ArgumentParser(prog="txl", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    arguments, more = parser.parse_known_args(words)
    if hasattr(arguments, "overrides") and not any(word.startswith("-") for word in more):
        arguments.overrides += more  # overrides after an option
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    with StopRequest(_interrupt, end_at_once, (signal.SIGINT, signal.SIGTERM)) as stop:
        code = _code(arguments)
    return 128 + stop.received if code == 130 and stop.received else code


def _code(arguments: argparse.Namespace) -> int:
    try:
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (RuntimeError, MemoryError) as error:
        from txl.training.hardware import failure_reason

        if not (reason := failure_reason(error).splitlines()[0]).startswith("out of memory"):
            raise
        print(f"error: {reason}; use a smaller batch_size or shorter lengths", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
