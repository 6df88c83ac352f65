"""`python -m wheeldb` is the command `wheeldb`."""

import sys

from wheeldb.cli import main

if __name__ == "__main__":
    sys.exit(main())
