"""The folder of prepared corpora: what is not ready has another name, and files are known by their stamps."""

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
from pathlib import Path

from filelock import FileLock, Timeout

log = logging.getLogger(__name__)

SETTLED_SECONDS = 2.0  # a file that changed this recently could change again under the same time stamp


class PreparationFolder:
    """A folder in the cache for what is not ready, made when it is needed and removed in the end."""

    def __init__(self, cache: Path, stack: contextlib.ExitStack) -> None:
        self.cache, self.stack, self.folder = cache, stack, None

    def _make(self, name: str) -> Path:
        if self.folder is None:
            owner = f".preparing-{socket.gethostname()}-"
            with self.writing(0):
                self.cache.mkdir(parents=True, exist_ok=True)
                for left in self.cache.glob(f"{owner}*"):  # by a process that was killed
                    if not _alive(left.name.removeprefix(owner).split("-")[0]):
                        shutil.rmtree(left, ignore_errors=True)
                self.folder = Path(tempfile.mkdtemp(prefix=f"{owner}{os.getpid()}-", dir=self.cache))
            self.stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name

    def turn(self, stamp: Stamp) -> None:
        """Wait while another process prepares the same files, so as to find what it made."""
        lock = FileLock(stamp.file.with_suffix(".lock"))
        with contextlib.suppress(OSError):  # a cache that is only read, a file system without locks
            stamp.file.parent.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(timeout=0.5)
            except Timeout:
                log.info("waiting for another process that prepares the same text")
                lock.acquire()
            self.stack.callback(lock.release)

    def unpacked(self) -> Path:
        """Return the folder for what is unpacked."""
        return self._make("unpacked")

    def prepared(self) -> Path:
        """Return the folder that becomes the prepared corpus."""
        return self._make("prepared")

    @contextlib.contextmanager
    def writing(self, size: int) -> Iterator[None]:
        """Say of an error while writing which folder it is about, and what to do."""
        try:
            yield
        except (ConnectionError, ModuleNotFoundError):
            raise
        except OSError as error:
            elsewhere = error.filename and not str(error.filename).startswith(str(self.cache))
            if error.errno is None or elsewhere:
                raise
            needs = f" (this corpus of {size / 1e6:,.0f} MB needs up to four times that)" if size else ""
            raise OSError(
                f"data.cache={self.cache} cannot be written: {error.strerror}{needs}; make room or name "
                "another folder"
            ) from error


def _alive(process: str) -> bool:
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OSError):
        return True
    return True


def move(made: Path, folder: Path) -> None:
    """Give what was made its name in one step, unless another process was first, whose copy is as good."""
    try:
        os.rename(made, folder)
    except OSError:
        if not folder.is_dir():
            raise


class Stamp:
    """Which folder some files gave: where nothing about the files changed, neither has their text.

    Args:
        cache: the folder of prepared corpora.
        sources: the files.
        key: what else decides what they give.

    Raises:
        FileNotFoundError: a file is not there.
    """

    def __init__(self, cache: Path, sources: list[Path], key: list) -> None:
        self.sources = sources
        self.began, self.seen = time.time(), self._look()
        key = [*key, *(str(path.absolute()) for path in sources)]
        self.file = cache / "stamps" / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]}.json"

    def _look(self) -> list[list[int]]:
        try:
            stats = [os.stat(path) for path in self.sources]
        except FileNotFoundError as error:
            raise FileNotFoundError(f"data.path: there is no file {error.filename}") from error
        return [[s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for s in stats]

    def folder(self) -> Path | None:
        """Return the folder that these very files gave before, if they did."""
        try:
            known = json.loads(self.file.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return self.file.parents[1] / known["folder"] if known["files"] == self.seen else None

    def check(self) -> None:
        """Raise ValueError if a file is another than it was at first: what was made of it is of no text."""
        if self._look() != self.seen:
            raise ValueError(f"{self.sources[0]} or another file changed while it was read; start again")

    def write(self, folder: Path) -> None:
        """Remember the folder, unless a file changed so lately that another change might not show."""
        latest = max((seen[-1] for seen in self.seen), default=0) / 1e9
        if latest > self.began - SETTLED_SECONDS:
            return
        with contextlib.suppress(OSError):  # a cache that is only read has no need of it
            self.file.parent.mkdir(exist_ok=True)
            part = self.file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps({"folder": folder.name, "files": self.seen}), "utf-8")
            os.replace(part, self.file)
