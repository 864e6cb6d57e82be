# SPDX-License-Identifier: Apache-2.0
"""`python -m lapstrake ...` is `lap ...`."""

import os
import sys

from lapstrake import _command
from lapstrake.errors import SystemFailure


def main() -> None:
    """Becomes the command lap, with the same arguments."""
    try:
        path = _command.command()
        os.execv(path, [path, *sys.argv[1:]])
    except SystemFailure as failure:
        sys.exit(f"lapstrake: {failure}")
    except OSError as error:
        sys.exit(f"lapstrake: lap cannot be run: {path} ({error.strerror})")


if __name__ == "__main__":
    main()
