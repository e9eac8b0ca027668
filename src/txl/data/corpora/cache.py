"""The folder of prepared corpora: unfinished ones have temporary names, stamps say which files gave which."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from filelock import FileLock, Timeout

from txl.records.files import write_atomically

log = logging.getLogger(__name__)

SETTLED_SECONDS = 2.0  # a file that changed this recently could change again under the same timestamp


@contextlib.contextmanager
def writing(cache: Path, size: int = 0) -> Iterator[None]:
    """Turn an OSError of writing to the cache into one that names the cache and says what to do."""
    try:
        yield
    except OSError as error:
        elsewhere = error.filename and not str(error.filename).startswith(str(cache))
        if error.errno is None or elsewhere:
            raise
        needs = f" (this corpus of {size / 1e6:,.0f} MB needs up to four times that)" if size else ""
        raise OSError(
            f"data.cache={cache} cannot be written: {error.strerror}{needs}; make room or name another folder"
        ) from error


@dataclass
class PreparationFolder:
    """A folder in the cache for unfinished files, made on first use and removed when the stack closes."""

    cache: Path
    stack: contextlib.ExitStack

    @cached_property
    def prepared(self) -> Path:
        """The folder that becomes the prepared corpus."""
        owner = f".preparing-{socket.gethostname()}-"
        with writing(self.cache):
            self.cache.mkdir(parents=True, exist_ok=True)
            for leftover in self.cache.glob(f"{owner}*"):  # by a process that was killed
                if not _alive(leftover.name.removeprefix(owner).split("-")[0]):
                    shutil.rmtree(leftover, ignore_errors=True)
            folder = Path(tempfile.mkdtemp(prefix=f"{owner}{os.getpid()}-", dir=self.cache))
            self.stack.callback(shutil.rmtree, folder, ignore_errors=True)
            for name in ("prepared", "unpacked"):
                (folder / name).mkdir()
        return folder / "prepared"

    def unpacked(self) -> Path:
        return self.prepared.with_name("unpacked")

    def lock(self, stamp: Stamp) -> None:
        """Wait while another process prepares the same files, whose result can then be used."""
        lock = FileLock(stamp.file.with_suffix(".lock"))
        with contextlib.suppress(OSError):  # a read-only cache, a file system without locks
            stamp.file.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0.5)
            except Timeout:
                log.info("waiting for another process that prepares the same text")
                lock.acquire()
            self.stack.callback(lock.release)

    def publish(self, folder: Path) -> None:
        """Rename the prepared folder, unless another process was first: its copy is as good."""
        try:
            os.rename(self.prepared, folder)
        except OSError:
            if not folder.is_dir():
                raise


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except (ValueError, OSError) as error:
        return not isinstance(error, ProcessLookupError)
    return True


class Stamp:
    """Records which prepared folder some files gave: as long as their status is unchanged, so is their text.

    Args:
        key: all else that the prepared tokens depend on.

    Raises:
        FileNotFoundError: a file is not there.
    """

    def __init__(self, cache: Path, sources: list[Path], key: list) -> None:
        self.sources = sources
        self.created, self.status = time.time(), self._read_status()
        key = [*key, *(str(path.absolute()) for path in sources)]
        self.file = cache / "stamps" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"

    def _read_status(self) -> list[list[int]]:
        try:
            stats = [os.stat(path) for path in self.sources]
        except FileNotFoundError as error:
            raise FileNotFoundError(f"data.path: there is no file {error.filename}") from error
        return [[s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in stats]

    def folder(self) -> Path | None:
        """Return the folder that these unchanged files gave before, if any."""
        try:
            known = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return self.file.parents[1] / known["folder"] if known["files"] == self.status else None

    def check(self) -> None:
        """Raise ValueError if a file has changed since: the tokens then belong to neither version."""
        if self._read_status() != self.status:
            raise ValueError(f"{self.sources[0]} or another file changed while it was read; start again")

    def write(self, folder: Path) -> None:
        """Record the folder, unless a file changed so recently that another change might not show."""
        latest = max((status[-1] for status in self.status), default=0) / 1e9
        if latest > self.created - SETTLED_SECONDS:
            return
        with contextlib.suppress(OSError):  # a read-only cache does without
            write_atomically(self.file, json.dumps({"folder": folder.name, "files": self.status}))
