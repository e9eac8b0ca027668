"""Files written whole or not at all, and the lock that keeps other processes out of a directory."""

import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class LockedError(ValueError):
    """The directory is locked by another process."""


def lock_directory(directory: Path, seconds: float = 10.0, setting: str = "hydra.run.dir") -> int:
    """Lock a directory until this process ends or closes the descriptor that is returned.

    Args:
        seconds: to wait for a process that is about to end.
        setting: chooses the directory, for the error.

    Raises:
        LockedError: another process holds the lock.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                raise LockedError(
                    f"{directory} is locked by another process; wait for it, or choose another {setting}"
                ) from None
            time.sleep(0.1)
        except OSError:  # a file system without locks
            return descriptor


def is_locked(directory: Path) -> bool:
    """Return whether a process holds the lock of a directory; true where the file system has no locks."""
    try:
        descriptor = os.open(directory, os.O_RDONLY)
    except OSError:  # there is none
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


@contextmanager
def atomic_path(path: Path, suffix: str | None = None) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which replaces `path` unless an exception is raised.

    No reader sees a partial file: the data are on the disk before the rename.

    Args:
        suffix: of its name where one process writes, which then replaces what a killed one left.
    """
    part = path.with_name(f".{path.name}.{suffix or os.getpid()}")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    with atomic_path(path) as part:
        part.write_text(text, "utf-8")


def finite(value: Any) -> Any:
    """Return a value as plain JSON, nan and infinity as `None`."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flatten(settings: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found
