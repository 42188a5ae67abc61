"""Which kernels are used, and that every table computes the same."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from theodolite import registry, settings
from theodolite.errors import TheodoliteError
from theodolite.hookspecs import hookimpl
from theodolite.nn import kernels
from theodolite.nn.kernels import Kernels


@pytest.fixture(autouse=True)
def unchanged(monkeypatch):
    for variable in settings.names("KERNELS"):
        monkeypatch.delenv(variable, raising=False)  # a whole run may be given other kernels
    monkeypatch.setattr(kernels, "active", kernels.active)
    monkeypatch.setattr(kernels, "_chosen", False)


def offering(monkeypatch: pytest.MonkeyPatch, *tables: Kernels) -> None:
    class Offer:
        def __init__(self, table: Kernels) -> None:
            self.table = table

        @hookimpl
        def kernels(self, device: str) -> Kernels:
            return self.table

    plugins = tuple(registry.Plugin(table.name, "dist", "1", Offer(table)) for table in tables)
    monkeypatch.setattr(registry, "discover", lambda group: plugins)


def test_the_highest_priority_is_used(monkeypatch) -> None:
    offering(monkeypatch, Kernels(name="fast", priority=50), Kernels(name="slow", priority=5))
    assert kernels.pick(kernels.usable()).name == "fast"
    assert kernels.pick(kernels.usable(), "slow").name == "slow"
    assert kernels.pick(kernels.usable(), "default") is kernels.DEFAULT


def test_one_table_serves_a_process(monkeypatch) -> None:
    """Models that are loaded compute with the table in use, so that no later load may replace it."""
    offering(monkeypatch, Kernels(name="fast", priority=50), Kernels(name="slow", priority=5))
    assert kernels.choose("slow") is kernels.active
    assert kernels.choose().name == "slow"
    assert kernels.choose("slow").name == "slow"
    for name, words in (("fast", "'fast' cannot be used beside 'slow'"), ("warp", "no kernels 'warp'")):
        with pytest.raises(TheodoliteError, match=words):
            kernels.choose(name)
    assert kernels.active.name == "slow"


def test_a_plugin_that_fails_is_told_and_left_out(monkeypatch, caplog) -> None:
    class Raising:
        @hookimpl
        def kernels(self) -> None:
            raise KeyError("avx")

    class Wrong:
        @hookimpl
        def kernels(self) -> tuple:
            return (1, 2)

    plugins = (registry.Plugin("raising", "dist", "1", Raising()), registry.Plugin("wrong", "dist", "1", Wrong()))
    monkeypatch.setattr(registry, "discover", lambda group: plugins)
    with pytest.raises(TheodoliteError, match=r"raising .*KeyError: 'avx'; wrong .*returned tuple"):
        kernels.choose("wrong")
    assert "raising (dist 1): kernels raised KeyError: 'avx'" in caplog.text
    assert "wrong (dist 1): kernels returned tuple (1, 2), expected Kernels or a str" in caplog.text
    assert kernels.choose().priority >= 0


def test_a_tie_is_an_error_that_names_both(monkeypatch) -> None:
    offering(monkeypatch, Kernels(name="one", priority=50), Kernels(name="two", priority=50))
    with pytest.raises(TheodoliteError, match="one, two"):
        kernels.choose()


def test_an_unknown_name_lists_the_usable(monkeypatch) -> None:
    with pytest.raises(TheodoliteError, match="default"):
        kernels.choose("nonsense")
    monkeypatch.setenv("MLXCEL_KERNELS", "default")
    assert kernels.choose().name == "default"


def test_every_table_gives_the_same_vectors(write, monkeypatch) -> None:
    import theodolite

    folder, texts = write(), ["the cat sat on a mat", "rain", "what falls over the hills"]
    wanted = theodolite.load(folder, kernels="default").embed(texts).vectors
    tables = kernels.usable()[0]
    assert "default" in tables
    for name in tables:
        monkeypatch.setattr(kernels, "_chosen", False)
        found = theodolite.load(folder, kernels=name).embed(texts).vectors
        np.testing.assert_allclose(found, wanted, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("act", [None, *kernels.ACTIVATIONS])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_of_every_table(act, bias) -> None:
    rng = np.random.default_rng(0)
    x, weight, shift = (mx.array(rng.standard_normal(s).astype(np.float32)) for s in ((2, 5, 24), (40, 24), (40,)))
    wanted = np.array(kernels.linear(x, weight, shift if bias else None, act))
    for table in kernels.usable()[0].values():
        found = np.array(table.linear(x, weight, shift if bias else None, act))
        np.testing.assert_allclose(found, wanted, atol=3e-5, rtol=1e-5, err_msg=table.name)
        half = np.array(table.linear(x.astype(mx.float16), weight.astype(mx.float16), None, act).astype(mx.float32))
        assert half.shape == wanted.shape


def test_device_is_named() -> None:
    assert kernels.device() in ("cpu", "gpu")
