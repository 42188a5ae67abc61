"""The command line. Every command is a file of its own and imports what it needs when it runs."""

INTERRUPTED = 130
"""The exit status after Ctrl-C."""
