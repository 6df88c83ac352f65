"""What a rename may do, for disks that are in memory: the rules of rename(2).

===================  =========================================================
what is there        what may be moved to it
===================  =========================================================
nothing              anything
a file               a file; a directory is ENOTDIR
an empty directory   a directory; a file is EISDIR
a full directory     nothing: ENOTEMPTY, or EISDIR for a file
what is moved        anything, and nothing happens
===================  =========================================================

A place below what is moved is EINVAL, one above it ENOTEMPTY, whatever is there.
Paths are below one root that always exists, so a leading slash makes no difference.
There are no links and no permissions here.
"""

import errno
import os
import posixpath

__all__ = ("judge_places", "judge_replacing", "names_of")


def names_of(path: str) -> list[str]:
    """Return the names on the way from the root, without dots and doubled slashes."""
    return [name for name in posixpath.normpath("/" + path).split("/") if name]


def judge_places(source: str, target: str) -> None:
    """Refuse a rename that would put a directory into itself, or over one above it.

    Raises:
        OSError: EINVAL, ENOTEMPTY.
    """
    old, new = names_of(source), names_of(target)
    if old != new and new[: len(old)] == old:
        raise _error(errno.EINVAL, target)
    if old != new and old[: len(new)] == new:
        raise _error(errno.ENOTEMPTY, target)


def judge_replacing(
    target: str, *, moves_directory: bool, entries_count: int | None
) -> None:
    """Refuse to replace what stands at the target by what is not of its kind.

    Args:
        target: Where it stands.
        moves_directory: Whether a directory is moved there, and not a file.
        entries_count: How many names the directory there has, ``None`` for a file.

    Raises:
        OSError: ENOTDIR, EISDIR, ENOTEMPTY.
    """
    if entries_count is None:
        if moves_directory:
            raise _error(errno.ENOTDIR, target)
    elif not moves_directory:
        raise _error(errno.EISDIR, target)
    elif entries_count:
        raise _error(errno.ENOTEMPTY, target)


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)
