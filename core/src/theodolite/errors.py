"""Every error a user can meet, in one tree.

::

    TheodoliteError
    ├── CheckpointError            the checkpoint cannot be loaded as asked
    │   ├── UnknownFamily          no family claims it
    │   │   └── MissingPlugin      a known family would, but its plugin is not installed
    │   ├── AmbiguousCheckpoint    two families claim it equally
    │   ├── BrokenPlugin           the plugin that would serve it does not import, or broke its contract
    │   └── Unsupported            the family is known, this checkpoint's options are not served
    ├── RequestError               the input cannot be served (HTTP 400)
    ├── InvalidResult              the model gave numbers that are none (HTTP 500)
    ├── NotLoaded                  no model serves this route (HTTP 501)
    ├── Busy                       the queue is full (HTTP 503)
    └── TimedOut                   no answer in time (HTTP 504)

A message says what was found, what was expected, and what to do; it fits on one line. `report` writes that line.
"""

from __future__ import annotations

import os
import re
import sys
import traceback

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class TheodoliteError(Exception):
    """Base of every error whose message is meant for the user."""


class CheckpointError(TheodoliteError):
    """The checkpoint cannot be loaded as asked."""


class UnknownFamily(CheckpointError):
    """No installed family claims the checkpoint."""


class MissingPlugin(UnknownFamily):
    """A known family serves the checkpoint, but its plugin is not installed."""


class AmbiguousCheckpoint(CheckpointError):
    """Two families claim the checkpoint with the same fit."""


class BrokenPlugin(CheckpointError):
    """A plugin does not import, or a hook of it raised or returned something that is not allowed.

    A value of the wrong kind in a config.json, which its family does not name itself, is told in the same way.
    """


class Unsupported(CheckpointError):
    """The family is known, but this checkpoint asks for something that is not served."""


class RequestError(TheodoliteError):
    """The input cannot be served; the caller has to change it."""


class InvalidResult(TheodoliteError):
    """The model returned a number that is not finite."""


class NotLoaded(TheodoliteError):
    """No model is loaded for the route that was asked."""


class Busy(TheodoliteError):
    """The worker's queue is full."""


class TimedOut(TheodoliteError):
    """The worker did not answer in time."""


def printable(text: str) -> str:
    """Text from outside with its control characters escaped, so that it cannot steer a terminal."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def tell(message: str) -> None:
    """Write one line to stderr: ``error: MESSAGE``."""
    sys.stderr.write(f"error: {printable(' '.join(message.split()))}\n")


def report(error: Exception) -> None:
    """Tell what went wrong in one line, with the traceback where THEODOLITE_DEBUG asks for it."""
    if os.environ.get("THEODOLITE_DEBUG", "0") not in ("", "0"):
        traceback.print_exception(error)
    if isinstance(error, (TheodoliteError, OSError)):
        tell(str(error))
    else:
        tell(f"this is a fault of theodolite's: {type(error).__name__}: {error} (THEODOLITE_DEBUG=1 shows where)")
