"""What the library says to programs, said to people at the command line.

    in_own_terms('give if_exists="replace"')        # 'give --if-exists replace'

Errors of the library name its arguments and functions. Whoever types words knows the
options and verbs; what can't be done from here is left out. Only wording is changed,
and only where the library's would be of no use: a text that is not in the list passes
as it is.
"""

import re

__all__ = ("in_own_terms",)

# What stands in the library's text, and what is said instead.
_WORDING = tuple(
    (re.compile(theirs), ours)
    for theirs, ours in (
        (r'if_exists="(\w+)"', r"--if-exists \1"),
        (
            r'"keep" to leave it, or a higher version',
            "keep to leave it, or a higher --version",
        ),
        (r", or open with a larger payload_bytes_max", ""),
        (
            r"use wheeldb\.connect\(path\) to reach it",
            "stop that to change it from here",
        ),
        (r"wheeldb\.restore\(backup, dest\), (`[^`]*`)", r"\1"),
        (r"db\.backup\(dest\) and (`[^`]*`) make one", r"\1 makes one"),
        (r"go on behind a Task or its number", "go on behind another one"),
        (r"get it again and decide anew", "look at it again and decide anew"),
        # An argument that an option gives, where it opens the complaint.
        (r"^(delay|at|lease|expires|version|priority|limit) is ", r"--\1 is "),
    )
)


def in_own_terms(text: str) -> str:
    """Return an error's text with options and verbs in it instead of arguments."""
    for theirs, ours in _WORDING:
        text = theirs.sub(ours, text)
    return text
