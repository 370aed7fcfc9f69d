"""``python -m fluss``: the command ``fluss``."""

import sys

from fluss.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
