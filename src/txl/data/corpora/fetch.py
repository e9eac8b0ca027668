"""Fetching published files: several addresses in turn, broken transfers resumed, checksums compared.

What arrives is kept as `NAME.part` until it is whole. pooch compares the checksum and gives the file its
name.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from pathlib import Path

from txl.terminal import ByteProgress

log = logging.getLogger(__name__)

TRIES = 3  # of one address, each going on where the last one broke off
WAIT_SECONDS = 1.0  # before the second try, twice as long before the third
NO_NETWORK = "no network, or no such host"
TIMEOUT_SECONDS = 30.0  # without an answer or the next piece of it


class Broken(Exception):  # noqa: N818  it is no error until every address is broken
    """A transfer that failed; `again` says whether trying the same address again could help."""

    def __init__(self, reason: str, again: bool) -> None:
        super().__init__(reason)
        self.again = again


def fetch(
    corpus: str,
    addresses: list[str],
    sha256: str | None,
    target: Path,
    beside: str = "",
    setting: str = "data.path",
) -> Path:
    """Return a file, fetched unless it is there already.

    Args:
        corpus: whose file it is, for messages.
        addresses: where it is found, tried in turn.
        sha256: of the file; None where none was published.
        target: what it is called when it is whole. A copy that somebody put there is taken.
        beside: what else is needed, for the message of the error.
        setting: which names a copy that lies elsewhere.

    Raises:
        ConnectionError: no address gave it; says what to get from where and where to put it.
        OSError: it cannot be written.
    """
    import pooch
    from filelock import FileLock

    pooch.get_logger().setLevel(logging.WARNING)
    part = target.with_name(f"{target.name}.part")
    try:
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(target.with_name(f".{target.name}.lock")):
                if not target.is_file():  # unless another process has fetched it meanwhile
                    _fetch(corpus, addresses, sha256, target, part, beside, setting)
    except ConnectionError:
        raise
    except OSError as error:
        raise OSError(
            f"data.cache: {target.parent} cannot be written: {error.strerror}; make room or name "
            "another folder"
        ) from error
    return target


def verify(corpus: str, file: Path, sha256: str | None) -> None:
    """Raise ValueError if a file, put there by somebody perhaps, has another checksum than the published."""
    import pooch

    found = pooch.file_hash(str(file)) if sha256 else sha256
    if found != sha256:
        raise ValueError(
            f"data={corpus}: {file} has sha256 {found[:12]}…, expected {sha256[:12]}…; remove it, to have it "
            "fetched again, or put the right file there (data.sha256=null takes it all the same)"
        )


def _fetch(
    corpus: str,
    addresses: list[str],
    sha256: str | None,
    target: Path,
    part: Path,
    beside: str,
    setting: str,
) -> None:
    """Try the addresses in turn."""
    import pooch

    reasons = []
    for address in addresses:
        for again in range(TRIES):
            if again:
                time.sleep(WAIT_SECONDS * 2 ** (again - 1))
            if not sha256:  # nothing would tell that two halves do not belong together
                part.unlink(missing_ok=True)
            try:
                download = partial(_download, part=part)
                pooch.retrieve(address, sha256, target.name, target.parent, downloader=download)
                return
            except Broken as error:
                reason, more = str(error), error.again
            except ValueError:  # pooch's word for a wrong checksum; it has removed the file
                reason, more = f"its sha256 is not {sha256[:12]}…", False
            log.warning("data=%s: %s: %s", corpus, address, reason)
            if not more:
                break
        reasons.append(f"{address} ({reason})")
    where = f"put it at {target}{beside}, then run this again; or name your own copy: {setting}=…"
    if not addresses:
        raise ConnectionError(f"data={corpus}: {target.name} has no public address; get a copy and {where}")
    raise ConnectionError(
        f"data={corpus}: {target.name} could not be fetched from {', nor from '.join(reasons)}; get "
        f"{addresses[0]} on a machine with a network and {where}"
    )


def _download(address: str, output: str, _: object, part: Path) -> None:
    """Write what is at an address to the file `output`, going on from what is left of an earlier transfer."""
    import requests

    begun = part.stat().st_size if part.exists() else 0
    headers = {"Range": f"bytes={begun}-"} if begun else {}
    try:
        with requests.get(address, stream=True, timeout=TIMEOUT_SECONDS, headers=headers) as answer:
            if answer.status_code == 416:  # nothing is left to send: the part is whole, or not of this file
                if answer.headers.get("Content-Range") != f"bytes */{begun}":
                    part.unlink()
                    raise Broken("what was left of an earlier transfer is no part of it", again=True)
            elif not answer.ok:
                raise Broken(f"{answer.status_code} {answer.reason}", again=answer.status_code >= 500)
            else:
                _receive(answer, part, begun if answer.status_code == 206 else 0)
    except requests.RequestException as error:
        reason = _reason(error)
        raise Broken(reason, again=reason != NO_NETWORK) from error
    part.replace(output)


def _receive(answer, part: Path, begun: int) -> None:
    """Write an answer to the end of the part, and raise Broken if it ends early."""
    length = answer.headers.get("Content-Length")
    total = begun + int(length) if length and "Content-Encoding" not in answer.headers else None
    with (
        part.open("ab" if begun else "wb") as file,
        ByteProgress(f"fetching {part.stem}", total, begun) as progress,
    ):
        for chunk in answer.iter_content(2**16):
            file.write(chunk)
            progress.advance(len(chunk))
        received = file.tell()
    if total is not None and received < total:
        raise Broken(f"it broke off after {received:,} of {total:,} bytes", again=True)


def _reason(error: Exception) -> str:
    """Return the innermost words of a chain of network errors, which say what happened."""
    text = str(error)
    for sign, meaning in {
        "Name or service not known": NO_NETWORK,
        "Temporary failure in name resolution": NO_NETWORK,
        "timed out": f"no answer for {TIMEOUT_SECONDS:.0f} s",
        "refused": "connection refused",
        "Connection broken": "it broke off",
    }.items():
        if sign in text:
            return meaning
    return f"{type(error).__name__}: {text.splitlines()[0][:120]}"
