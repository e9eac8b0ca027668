"""A process that we started ends when its parent does, however the parent ends."""

import ctypes
import os
import signal
import sys
import threading

LIFELINE = "TXL_LIFELINE"  # the descriptor of a pipe that closes when the parent ends
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>


def hold_lifeline() -> None:
    """End this process at once when the process that started it is killed."""
    if LIFELINE not in os.environ:
        return
    if sys.platform.startswith("linux"):  # a stopped process runs no thread, but the kernel can kill it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch(pipe: int) -> None:
        os.read(pipe, 1)  # nothing is ever written: it returns when the other end is closed
        os._exit(1)

    threading.Thread(target=watch, args=(int(os.environ[LIFELINE]),), daemon=True).start()
