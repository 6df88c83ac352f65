"""`wheeldb check DIR`: verify every segment, row and invariant; print what is wrong.

    exit 0  nothing was found
    exit 1  findings, one a line
    exit 4  the store can't even be opened: `wheeldb replay DIR --salvage --to NEWDIR`

It changes nothing and works beside a running owner.
"""

import argparse

from wheeldb.cli.arguments import add_directory
from wheeldb.cli.opening import ExitStatus, open_to_read
from wheeldb.cli.output import print_json, say, shown

__all__ = ("configure", "run")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments."""
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="one finding a line")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings."""
    with open_to_read(arguments.directory) as db:
        findings = db.check()
    for finding in findings:
        if arguments.json:
            print_json(finding)
            continue
        place = [finding.where]
        if finding.path is not None:
            place.append(finding.path)
        if finding.lsn is not None:
            place.append(f"LSN {finding.lsn}")
        print(f"{shown(' '.join(place))}: {shown(finding.what)}")
    say(f"{len(findings)} findings" if findings else "OK")
    return ExitStatus.FINDINGS if findings else ExitStatus.FINE
