"""The conformance kit says what is wrong with a plugin, in the words of its author."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import pytest

import theodolite_bert.plugin as bert
from theodolite import registry
from theodolite.hookspecs import hookimpl
from theodolite.testing import FamilyTests, suite
from theodolite.values import Batch

HOOKS = {name: getattr(bert, name) for name in ("detect", "build", "sanitize", "forward")}


def case(plugin: SimpleNamespace) -> tuple[FamilyTests, registry.Registry]:
    kit = FamilyTests()
    kit.plugin, kit.name = plugin, "bert"
    return kit, registry.Registry([registry.Plugin("bert", "under test", "0", plugin)])


def test_a_missing_hook_is_named() -> None:
    kit, plugins = case(SimpleNamespace(detect=bert.detect, build=bert.build))
    with pytest.raises(AssertionError, match="there is no forward under @hookimpl"):
        kit.test_hooks_are_known(plugins)


def test_a_misspelt_hook_is_named() -> None:
    @hookimpl
    def forwrd(batch: Batch) -> None: ...

    kit, plugins = case(SimpleNamespace(**HOOKS, forwrd=forwrd))
    with pytest.raises(AssertionError, match="there is no hook forwrd"):
        kit.test_hooks_are_known(plugins)


def test_a_shape_of_forward_is_named_with_the_one_expected(write) -> None:
    @hookimpl
    def forward(model: bert.Bert, batch: Batch) -> mx.array:
        return bert.forward(model, batch)[:, :1]

    kit, plugins = case(SimpleNamespace(**{**HOOKS, "forward": forward}))
    folder: Path = write()
    with pytest.raises(AssertionError, match=r"forward returned \[\d+, 1, 64\], expected \[\d+, \d+, D\]"):
        kit.test_forward_answers_for_every_token(suite.load(folder, plugins))
