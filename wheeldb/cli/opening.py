"""Open a store for one verb, and turn what goes wrong into an exit status.

    0  fine
    1  findings, an unknown id, a refusal, or something was dropped
    2  usage: the command line can't be understood
    3  cannot open: locked, missing, no permission, not a store; or no stdout
    4  refused: corrupt; `wheeldb replay` can help

Reading takes no lock and repairs nothing, so it works beside a running owner. To write,
the effective user must own the directory: files left behind by root would lock the
owner out of the own store. Root therefore takes on the owner's uid and gid first, for
good.
"""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum

import wheeldb
from wheeldb.cli.arguments import UsageError
from wheeldb.cli.output import say
from wheeldb.cli.wording import in_own_terms

__all__ = (
    "ExitStatus",
    "guarded",
    "open_to_read",
    "open_to_write",
    "take_owner",
    "usage_errors",
)


class ExitStatus(IntEnum):
    """What a verb came to."""

    FINE = 0
    FINDINGS = 1
    USAGE = 2
    CANNOT_OPEN = 3
    CORRUPT = 4
    INTERRUPTED = 130  # what shells report for SIGINT


def open_to_read(directory: str) -> wheeldb.WheelDB:
    """Open a store to look at it: no lock, no repair, nothing written."""
    return wheeldb.open(directory, readonly=True, create=False)


def open_to_write(directory: str, *, create: bool = False) -> wheeldb.WheelDB:
    """Open a store to change it; nothing runs by itself meanwhile.

    Raises:
        PermissionError: The directory belongs to somebody else.
    """
    author = f"command line, uid {os.getuid()}"
    take_owner(directory)
    return wheeldb.open(directory, create=create, driver=False, author=author)


def take_owner(directory: str) -> None:
    """Become the owner of a directory, or refuse; a missing one is nobody's.

    Raises:
        PermissionError: It belongs to somebody else, and this user isn't root.
    """
    try:
        info = os.stat(directory)
    except FileNotFoundError:
        return
    user = os.geteuid()
    if user == info.st_uid:
        return
    if user != 0:
        raise PermissionError(
            f"{directory} belongs to uid {info.st_uid} and this is uid {user}; "
            f"run it as its owner: sudo -u '#{info.st_uid}' wheeldb …"
        )
    # Root's own Python may be unreadable to others. What opening a store imports on its
    # way, LMDB's own modules too, is imported by opening one on a disk.
    with tempfile.TemporaryDirectory() as place:
        wheeldb.open(f"{place}/store", driver=False, reserve=False).close()
    # The order matters: without root's uid the groups could no longer be changed.
    os.setgroups([])
    os.setgid(info.st_gid)
    os.setuid(info.st_uid)


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn what a call says about its arguments into a complaint about usage.

    Only around one call of the store: elsewhere such an error is a mistake of ours, and
    its traceback is wanted.

    Raises:
        UsageError: The block raised ValueError or TypeError.
    """
    try:
        yield
    except wheeldb.WheelDBError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"wheeldb: {in_own_terms(str(error))}") from error


def guarded(work: Callable[[], int]) -> int:
    """Do a verb's work and return its exit status; every refusal is one line.

    Without a stdout nothing is begun: the answer would be lost, and a file of the store
    would be opened under its number.
    """
    if sys.stderr is None:
        # To print there would be to print among the data.
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if sys.stdout is None:
        return _refused(
            "stdout is closed; send it to /dev/null instead", ExitStatus.CANNOT_OPEN
        )
    try:
        status = work()
        sys.stdout.flush()
    except UsageError as error:
        return _refused(error, ExitStatus.USAGE)
    except wheeldb.CorruptionError as error:
        return _refused(error, ExitStatus.CORRUPT)
    except (wheeldb.LockedError, wheeldb.NoOwner, wheeldb.FormatError) as error:
        return _refused(error, ExitStatus.CANNOT_OPEN)
    except wheeldb.WheelDBError as error:
        return _refused(error, ExitStatus.FINDINGS)
    except BrokenPipeError:
        # The reader went away (`| head`). What it didn't read was dropped. Python
        # would complain about stdout once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitStatus.FINDINGS
    except OSError as error:
        return _refused(error, ExitStatus.CANNOT_OPEN)
    except KeyboardInterrupt:
        return _refused("interrupted", ExitStatus.INTERRUPTED)
    return status


def _refused(error: BaseException | str, status: ExitStatus) -> int:
    text = in_own_terms(" ".join(str(error).split())) or type(error).__name__
    if isinstance(error, OSError) and error.filename and error.strerror:
        text = f"{error.filename}: {error.strerror}"
    say(text if text.startswith("wheeldb") else f"wheeldb: {text}")
    return status
