"""`python -m txl VERB …`, also installed as `txl`: everything beside training."""

from __future__ import annotations

import argparse
import sys

from txl.verbs import attention, convert, describe, evaluate, generate, parity, prepare, recl, report, speed

VERBS = (prepare, describe, evaluate, recl, speed, attention, generate, parity, convert, report)


def main(words: list[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 for done, 1 for a failed check or wrong input."""
    parser = argparse.ArgumentParser(prog="txl", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for verb in VERBS:
        verb.add_to(verbs)
    arguments, more = parser.parse_known_args(words)
    if hasattr(arguments, "overrides") and not any(word.startswith("-") for word in more):
        arguments.overrides += more  # overrides after an option
    elif more:
        parser.error(f"unrecognized arguments: {' '.join(more)}")
    try:
        return arguments.run(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
