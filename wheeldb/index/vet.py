"""Whether the index file may be opened in this process: a look from outside.

A damaged LMDB file doesn't only give wrong answers: cut short it kills the process with
SIGBUS, with a page zeroed by SIGABRT.  So what can be seen without LMDB is looked at
first, always: both meta pages, which LMDB never repairs, and the length of the file.

    meta page (0 and 1), native byte order
    | page number 8 | pad 2 | flags 2 | unused 4 |
    | magic 4 | version 4 | address 8 | map size 8 |
    | free tree 48, the first 4 the page size | main tree 48 | last page 8 | txnid 8 |

A file that nobody vouches for is then read from end to end by a child process, which
may die of it (`wheeldb.index.verify`).  This module changes nothing on the disk.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct

from wheeldb.disk import Disk
from wheeldb.index.tables import DATA_FILE

__all__ = ("OPENING_FILE", "STATUS_DAMAGED", "Verdict", "vet")

# The child's exit status for damage; Python's own for an exception is 1.
STATUS_DAMAGED = 4

# Present while an index is being opened for writing.  One that is found there means
# that the last opening ended the process.
OPENING_FILE = "OPENING"

_META = Struct("=Q2xH4xIIQQ" + "I36xQ" * 2 + "QQ")
_MAGIC = 0xBEEFC0DE
_VERSION = 1
_META_PAGE_FLAG = 0x08
_PAGE_BYTES_MIN = 512
_PAGE_BYTES_MAX = 32_768
_NO_PAGE = 2**64 - 1

# A child that fails says why in its first line; more is of no use in a report.
_SAYING_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is known about an index file before it is opened.

    Attributes:
        is_usable: Whether to open it; otherwise it has to be rebuilt.
        reason: Why, in a few words for the recovery report.
        digests: Rows and digest of each table, where a child has read them all.
    """

    is_usable: bool
    reason: str
    digests: Mapping[str, tuple[int, int]] | None = None


def vet(
    path: str, *, disk: Disk, vouched: bool, verify_timeout_s: float = 60.0
) -> Verdict:
    """Return whether the index in a directory may be opened in this process.

    Args:
        path: The index's directory.
        disk: Where it lies.
        vouched: Whether the caller knows that nothing but this store's last owner
            touched the file and that no power cut fell in between.
        verify_timeout_s: The longest time that reading it in a child may take; 0 when
            a rebuild is quicker anyway.

    Raises:
        OSError: As the disk says, reading.
    """
    if disk.info(f"{path}/{DATA_FILE}") is None:
        return Verdict(is_usable=False, reason="there is none")
    if disk.info(f"{path}/{OPENING_FILE}") is not None:
        return Verdict(is_usable=False, reason="the last opening of it did not return")
    handle = disk.open(f"{path}/{DATA_FILE}", readonly=True)
    try:
        flaw = _flaw(disk, handle)
    finally:
        disk.close(handle)
    if flaw is not None:
        return Verdict(is_usable=False, reason=flaw)
    if vouched:
        return Verdict(is_usable=True, reason="vouched for")
    if verify_timeout_s <= 0:
        return Verdict(is_usable=False, reason="nobody vouches for it")
    return _verify_in_child(path, verify_timeout_s)


def _flaw(disk: Disk, handle: int) -> str | None:
    """Return what is wrong with the meta pages or the length, ``None`` if nothing."""
    if sys.maxsize < 2**32:
        return "a 32-bit process can't look into the file"
    head = disk.pread(handle, _PAGE_BYTES_MAX + _META.size, 0)
    if len(head) < _META.size:
        return f"{len(head)} bytes are no index"
    page_bytes = _META.unpack_from(head)[6]
    if not (
        _PAGE_BYTES_MIN <= page_bytes <= _PAGE_BYTES_MAX
        and page_bytes & (page_bytes - 1) == 0
    ):
        return f"meta page 0 is damaged: pages of {page_bytes} bytes"
    pages_needed = 2
    for number in (0, 1):
        if len(head) < number * page_bytes + _META.size:
            return f"cut short: {len(head)} bytes"
        (
            page_number, flags, magic, version, _address, _map_bytes, *rest
        ) = _META.unpack_from(head, number * page_bytes)  # fmt: skip
        twin_page_bytes, free_root, _, main_root, last_page, _txnid = rest
        if (page_number, flags & _META_PAGE_FLAG) != (number, _META_PAGE_FLAG):
            return f"meta page {number} is damaged: not a meta page"
        if (magic, version) != (_MAGIC, _VERSION):
            return f"meta page {number} is damaged: magic {magic:#x}, version {version}"
        if twin_page_bytes != page_bytes:
            return f"meta page {number} is damaged: pages of {twin_page_bytes} bytes"
        for root in (free_root, main_root):
            if root != _NO_PAGE and not 2 <= root <= last_page:
                return f"meta page {number} is damaged: root {root} of {last_page}"
        pages_needed = max(pages_needed, last_page + 1)
    # LMDB uses the newer page only, but the file never shrinks, so that it holds what
    # the older one names as well.
    size = disk.size(handle)
    if size < pages_needed * page_bytes:
        return f"cut short: {size} bytes, not {pages_needed * page_bytes}"
    return None


def _verify_in_child(path: str, timeout_s: float) -> Verdict:
    # Seldom needed, and a tenth of the time that importing wheeldb takes.
    import subprocess

    if not sys.executable:
        return Verdict(is_usable=False, reason="no Python for a child process")
    # The child finds the modules where this process found them, and nowhere else.
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(os.path.abspath(one) for one in sys.path)
    }
    program = [sys.executable, "-P", "-m", "wheeldb.index.verify"]
    try:
        child = subprocess.run(
            [*program, os.path.abspath(path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        reason = f"reading it in a child process took over {timeout_s:g} s"
        return Verdict(is_usable=False, reason=reason)
    except OSError as error:
        reason = f"no child process to read it: {error}"
        return Verdict(is_usable=False, reason=reason)
    if child.returncode < 0:
        reason = f"reading it killed a child process (signal {-child.returncode})"
        return Verdict(is_usable=False, reason=reason)
    if child.returncode:
        said = child.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1][:_SAYING_MAX] if said else f"status {child.returncode}"
        what = "damaged" if child.returncode == STATUS_DAMAGED else "not read"
        return Verdict(is_usable=False, reason=f"{what}: {reason}")
    digests = {
        table: (rows, digest)
        for table, (rows, digest) in json.loads(child.stdout).items()
    }
    return Verdict(is_usable=True, reason="read in a child process", digests=digests)
