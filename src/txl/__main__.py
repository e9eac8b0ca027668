"""`python -m txl VERB …`, also installed as `txl`: everything except training."""

import signal
import sys

from txl.launch.processes import hold_lifeline
from txl.launch.stop import StopRequest, end_at_once
from txl.verbs.arguments import parse
from txl.verbs.runner import INTERRUPTED, run


def main(words: list[str] | None = None) -> int:
    """Run one verb and return its exit code.

    Returns:
        0 for success, 1 for a failed check or wrong input, 130 after Ctrl-C and 143 after SIGTERM.
    """
    hold_lifeline()  # of a sweep that measures its models
    arguments = parse(words, __doc__)
    with StopRequest(_interrupt, end_at_once, (signal.SIGINT, signal.SIGTERM)) as stop:
        try:
            code = run(arguments)
        except (ValueError, OSError, ImportError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = 1
        except (RuntimeError, MemoryError) as error:
            from txl.training.hardware import failure_reason

            if not (reason := failure_reason(error).splitlines()[0]).startswith("out of memory"):
                raise
            print(f"error: {reason}; use a smaller batch_size or shorter lengths", file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            code = INTERRUPTED
    return 128 + stop.received if code == INTERRUPTED and stop.received else code


def _interrupt(_: int) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
