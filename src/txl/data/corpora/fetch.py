"""Fetching published files: several addresses in turn, broken transfers resumed, checksums compared.

A transfer is kept as `NAME.part` until it is complete. pooch then compares the checksum and renames the file.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from txl.data.corpora.cache import writing
from txl.terminal import ByteProgress

if TYPE_CHECKING:
    import requests

log = logging.getLogger(__name__)

TRIES = 3  # of one address, each resuming where the last one broke off
WAIT_SECONDS = 1.0  # before the second try, twice as long before the third
NO_NETWORK = "no network, or no such host"
TIMEOUT_SECONDS = 30.0  # without an answer or its next piece


@dataclass(eq=False)
class TransferError(Exception):
    """A failed transfer; `retry` says whether another try of the same address could help."""

    reason: str
    retry: bool


def downloads(cache: str, corpus: str) -> Path:
    return Path(cache).expanduser() / "downloads" / corpus


def fetch(
    corpus: str,
    addresses: list[str],
    sha256: str | None,
    cache: str,
    file: str,
    beside: str = "",
    setting: str = "data.path",
) -> Path:
    """Return a file among the downloads, fetched unless it is there already.

    Args:
        file: its path there; a copy put there by hand is used.
        beside: for the error: which other files are needed.
        setting: for the error: the setting that names a copy elsewhere.

    Raises:
        ConnectionError: no address gave it; the message says where to get the file and where to put it.
        OSError: it cannot be written.
    """
    target = downloads(cache, corpus) / file
    if target.is_file():
        return target
    reasons = []
    with writing(Path(cache).expanduser()):
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f".{target.name}.lock")):
            for address in addresses:  # unless another process has fetched it meanwhile
                reason = "" if target.is_file() else _transfer(corpus, address, sha256, target)
                if not reason:
                    return target
                reasons.append(f"{address} ({reason})")
    where = f"put it at {target}{beside}, then run this again; or name your own copy: {setting}=…"
    if not addresses:
        raise ConnectionError(f"data={corpus}: {target.name} has no public address; get a copy and {where}")
    raise ConnectionError(
        f"data={corpus}: {target.name} could not be fetched from {', nor from '.join(reasons)}; get "
        f"{addresses[0]} on a machine with a network and {where}"
    )


def verify(corpus: str, file: Path, sha256: str | None) -> None:
    """Raise ValueError if a file, perhaps put there by hand, does not have the published checksum."""
    import pooch

    if sha256 and (found := pooch.file_hash(str(file))) != sha256:
        raise ValueError(
            f"data={corpus}: {file} has sha256 {found[:12]}…, expected {sha256[:12]}…; remove it to have it "
            "fetched again, or put the right file there (data.sha256=null accepts it anyway)"
        )


def _transfer(corpus: str, address: str, sha256: str | None, target: Path) -> str:
    """Fetch a file from one address; return why it failed, "" if it did not."""
    import pooch

    pooch.get_logger().setLevel(logging.WARNING)
    part = target.with_name(f"{target.name}.part")
    for attempt in range(TRIES):
        if attempt:
            time.sleep(WAIT_SECONDS * 2 ** (attempt - 1))
        if not sha256:  # nothing would tell whether two halves belong together
            part.unlink(missing_ok=True)
        try:
            download = partial(_download, part=part)
            pooch.retrieve(address, sha256, target.name, target.parent, downloader=download)
            return ""
        except TransferError as error:
            reason, retry = error.reason, error.retry
        except ValueError:  # raised by pooch for a wrong checksum; it has removed the file
            reason, retry = f"its sha256 is not {str(sha256)[:12]}…", False
        log.warning("data=%s: %s: %s", corpus, address, reason)
        if not retry:
            break
    return reason


def _download(address: str, output: str, _: object, part: Path) -> None:
    """Download to the file `output`, resuming an earlier transfer if a part of it is left."""
    import requests

    received = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={received}-"} if received else {}
    try:
        with requests.get(address, stream=True, timeout=TIMEOUT_SECONDS, headers=headers) as answer:
            if answer.status_code == 416:  # nothing is left to send: the part is whole, or not of this file
                if answer.headers.get("Content-Range") != f"bytes */{received}":
                    part.unlink()
                    raise TransferError("the partial file belongs to another download", retry=True)
            elif not answer.ok:
                raise TransferError(f"{answer.status_code} {answer.reason}", retry=answer.status_code >= 500)
            else:
                _receive(answer, part, received if answer.status_code == 206 else 0)
    except requests.RequestException as error:
        reason = _reason(error)
        raise TransferError(reason, retry=reason != NO_NETWORK) from error
    part.replace(output)


def _receive(answer: requests.Response, part: Path, received: int) -> None:
    length = answer.headers.get("Content-Length")
    total = received + int(length) if length and "Content-Encoding" not in answer.headers else None
    with (
        part.open("ab" if received else "wb") as file,
        ByteProgress(f"fetching {part.stem}", total, received) as progress,
    ):
        for chunk in answer.iter_content(2**16):
            file.write(chunk)
            progress.advance(len(chunk))
        size = file.tell()
    if total is not None and size < total:
        raise TransferError(f"it broke off after {size:,} of {total:,} bytes", retry=True)


def _reason(error: Exception) -> str:
    """Return the cause, which the innermost of a chain of network errors names."""
    text = str(error)
    for sign, reason in {
        "Name or service not known": NO_NETWORK,
        "Temporary failure in name resolution": NO_NETWORK,
        "timed out": f"no answer for {TIMEOUT_SECONDS:.0f} s",
        "refused": "connection refused",
        "Connection broken": "it broke off",
    }.items():
        if sign in text:
            return reason
    return f"{type(error).__name__}: {text.splitlines()[0][:120]}"
