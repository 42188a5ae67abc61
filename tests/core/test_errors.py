"""An error is one line on stderr, whatever is in its message."""

from __future__ import annotations

import pytest

from theodolite import errors


def test_a_message_is_one_line_without_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    errors.report(errors.RequestError("no file\n  x\x1b[31m\x9b2J größe"))
    assert capsys.readouterr() == ("", "error: no file x\\x1b[31m\\x9b2J größe\n")


def test_what_is_not_meant_for_the_user_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    errors.report(KeyError("layers"))
    assert capsys.readouterr().err == (
        "error: this is a fault of theodolite's: KeyError: 'layers' (THEODOLITE_DEBUG=1 shows where)\n"
    )


@pytest.mark.parametrize(("debug", "shown"), [("", False), ("0", False), ("1", True)])
def test_the_traceback_is_shown_where_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, debug: str, shown: bool
) -> None:
    monkeypatch.setenv("THEODOLITE_DEBUG", debug)
    errors.report(errors.NotLoaded("none"))
    assert ("NotLoaded" in capsys.readouterr().err) is shown
