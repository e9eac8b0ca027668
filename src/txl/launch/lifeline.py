"""The lifeline of a process that another program of ours started: it ends when that one does, however."""

from __future__ import annotations

import os
import threading

LIFELINE = "TXL_LIFELINE"  # a pipe that ends when the program that started this process does


def hold_lifeline() -> None:
    """End this process at once when the program that started it is killed: none works on alone."""
    if LIFELINE not in os.environ:
        return

    def watch(pipe: int) -> None:
        os.read(pipe, 1)  # nobody writes: it returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, args=(int(os.environ[LIFELINE]),), daemon=True).start()
