"""`python -m hwal` is `hwal`."""

import sys

from hwal.cli import main

if __name__ == "__main__":
    sys.exit(main())
