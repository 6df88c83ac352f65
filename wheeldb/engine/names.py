"""Names and ids as callers give them.

An id is the caller's own text, or a generated one, which is a ``t`` and the task's
number in fourteen hexadecimal digits; callers can't choose an id of that form:

    lookup_id("valve-7") == "valve-7"        lookup_id("t0000000000002a") == 42
"""

import re

__all__ = ("ID_BYTES_MAX", "judge_id", "judge_text", "lookup_id")

ID_BYTES_MAX = 255

_GENERATED = re.compile(r"t[0-9a-f]{14}\Z")


def judge_text(text: object, what: str, bytes_max: int) -> str:
    """Return the text, which has to be a ``str`` of 1 to ``bytes_max`` bytes of UTF-8.

    Raises:
        TypeError: If it is no ``str``.
        ValueError: If it is empty, too long or not Unicode.
    """
    if type(text) is not str:
        raise TypeError(f"{what} is a {type(text).__name__}, not a str")
    size = _size(text, what)
    if not 1 <= size <= bytes_max:
        raise ValueError(
            f"{what} has {size} bytes of UTF-8; it has to have 1 to {bytes_max}"
        )
    return text


def _size(text: str, what: str) -> int:
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} is not Unicode text: {error.reason}") from error


def judge_id(task_id: object) -> str:
    """Return the id, which has to be one that a caller may give.

    Raises:
        TypeError, ValueError: As ``judge_text``, or if it looks like a generated one.
    """
    text = judge_text(task_id, "the id", ID_BYTES_MAX)
    if _GENERATED.match(text):
        raise ValueError(
            f"the id {text!r} has the form of generated ids; choose another"
        )
    return text


def lookup_id(task_id: object) -> int | str:
    """Return the number that a generated id stands for, or the caller's id itself.

    One that nobody can have, being empty or too long, is only unknown.

    Raises:
        TypeError: If it is no ``str``.
        ValueError: If it is not Unicode.
    """
    if type(task_id) is not str:
        raise TypeError(f"the id is a {type(task_id).__name__}, not a str")
    if _GENERATED.match(task_id):
        return int(task_id[1:], 16)
    _size(task_id, "the id")
    return task_id
