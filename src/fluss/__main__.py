"""``python -m fluss``: the command ``fluss``."""

from fluss.cli.app import run

if __name__ == "__main__":
    run()
