"""The command ``fluss``: a cluster from a terminal or a script. A user of the public client, and of what can be run.

Importing this, and ``fluss.cli.app``, loads click and nothing of the client: every command is imported when it is run.
"""
