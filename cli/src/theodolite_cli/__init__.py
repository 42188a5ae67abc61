"""The command line. Every command is a file of its own and imports what it needs when it runs."""
