"""Election of one family: vetoes, fit, ties, broken and missing plugins."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from theodolite import registry
from theodolite.checkpoint import Checkpoint
from theodolite.errors import AmbiguousCheckpoint, BrokenPlugin, MissingPlugin, UnknownFamily
from theodolite.hookspecs import hookimpl
from theodolite.values import Fit, Pooling, Profile, Task


def claims(name: str, fit: Fit = Fit.MODEL_TYPE, task: Task = Task.EMBED, model_type: str = "bert") -> Any:
    class Family:
        @hookimpl
        def detect(self, checkpoint: Checkpoint) -> Profile | None:
            if checkpoint.model_type != model_type:
                return None
            return Profile(family=name, fit=fit, task=task, vocab_size=10, dim=4)

        @hookimpl
        def build(self) -> str:
            return f"built by {name}"

    return Family()


def plugin(name: str, *args: Any, **options: Any) -> registry.Plugin:
    return registry.Plugin(name, f"dist-{name}", "1.0", claims(name, *args, **options))


def test_the_highest_fit_wins_in_any_order(write) -> None:
    checkpoint = Checkpoint(write())
    low, high = plugin("low", Fit.MODEL_TYPE), plugin("high", Fit.EXACT)
    for order in ([low, high], [high, low]):
        assert registry.Registry(order).elect(checkpoint, Task.EMBED).profile.family == "high"


def test_a_tie_names_both_and_the_flag(write) -> None:
    both = registry.Registry([plugin("one"), plugin("two")])
    with pytest.raises(AmbiguousCheckpoint, match=r"one \(dist-one 1.0\) and two .*--family one or --family two"):
        both.elect(Checkpoint(write()), Task.EMBED)
    assert both.elect(Checkpoint(write()), Task.EMBED, "two").profile.family == "two"


def test_only_the_owner_answers_the_stages(write) -> None:
    checkpoint = Checkpoint(write())
    both = registry.Registry([plugin("one"), plugin("two", model_type="other")])
    assert both.elect(checkpoint, None).build(checkpoint) == "built by one"


def test_a_classifier_is_never_an_embedder(write) -> None:
    checkpoint = Checkpoint(write({"architectures": ["BertForSequenceClassification"]}))
    with pytest.raises(UnknownFamily):
        registry.Registry([plugin("bert", Fit.OVERRIDE)]).elect(checkpoint, Task.EMBED)


def test_an_unknown_model_type_is_named(write) -> None:
    checkpoint = Checkpoint(write({"model_type": "mpnet", "architectures": ["MPNetModel"]}))
    with pytest.raises(UnknownFamily, match=r"'mpnet' \(MPNetModel\)"):
        registry.Registry([plugin("bert")]).elect(checkpoint, Task.EMBED)


def test_a_known_family_that_is_not_installed_gives_the_pip_line(write) -> None:
    checkpoint = Checkpoint(write())
    with pytest.raises(MissingPlugin, match="pip install theodolite-bert"):
        registry.Registry([]).elect(checkpoint, Task.EMBED)
    with pytest.raises(MissingPlugin, match="pip install theodolite-gemma3"):
        registry.Registry([]).elect(checkpoint, Task.EMBED, "gemma3")
    with pytest.raises(UnknownFamily, match="there is no family 'nonsense'"):
        registry.Registry([]).elect(checkpoint, Task.EMBED, "nonsense")


def test_a_broken_plugin_stops_nobody_else_and_is_named(write) -> None:
    broken = registry.Plugin("bert", "theodolite-bert", "0.1.0", error="ImportError: no module named foo")
    found = registry.Registry([broken, plugin("other", model_type="other")])
    assert [p.name for p in found.families] == ["other"]
    with pytest.raises(BrokenPlugin, match="did not load: ImportError"):
        found.elect(Checkpoint(write()), Task.EMBED)


def test_hooks_that_do_not_fit_are_reported_not_raised() -> None:
    class Wrong:
        @hookimpl
        def detect(self, nonsense: int) -> None: ...

    found = registry.Registry([registry.Plugin("wrong", "dist", "1", Wrong())])
    assert not found.families
    assert "nonsense" in (found.broken[0].error or "")


def test_a_claim_under_another_name_is_a_fault(write) -> None:
    liar = registry.Plugin("honest", "dist", "1", claims("liar"))
    with pytest.raises(BrokenPlugin, match="'liar'"):
        registry.Registry([liar]).elect(Checkpoint(write()), Task.EMBED)


def test_the_wrong_task_says_which_command_to_use(write) -> None:
    checkpoint = Checkpoint(write())
    with pytest.raises(UnknownFamily, match="theodolite embed"):
        registry.Registry([plugin("bert")]).elect(checkpoint, Task.RERANK)


def test_observers_see_the_stages_of_the_owner(write) -> None:
    seen = []

    class Observer:
        @hookimpl(wrapper=True)
        def build(self, checkpoint: Checkpoint) -> Any:
            seen.append(checkpoint.label)
            return (yield)

    checkpoint = Checkpoint(write())
    bound = registry.Registry([plugin("bert")], observers=[Observer()]).elect(checkpoint, Task.EMBED)
    assert bound.build(checkpoint) == "built by bert"
    assert seen == [checkpoint.label]


def point(name: str, value: str, load: Any, dist: str) -> Any:
    return SimpleNamespace(name=name, value=value, load=load, dist=SimpleNamespace(name=dist, version="1"))


def test_discovery_takes_each_entry_point_once_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ImportError("no such thing")

    points = [
        point("same", "a.b", lambda: "module", "root"),
        point("same", "a.b", lambda: "module", "member"),
        point("bad", "c", fails, "bad-dist"),
        point("twice", "d", lambda: 1, "first"),
        point("twice", "e", lambda: 2, "second"),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    found = {plugin.name: plugin for plugin in registry.discover("any")}
    assert found["same"].value == "module"
    assert found["same"].error is None
    assert "ImportError: no such thing" in (found["bad"].error or "")
    assert "first and second" in (found["twice"].error or "")


def test_pooling_names_are_the_checkpoints() -> None:
    assert [mode.value for mode in Pooling] == ["cls", "mean", "max", "lasttoken"]


def test_installed_families_are_the_catalogues() -> None:
    from theodolite import catalog

    names = {plugin.name for plugin in registry.installed().plugins}
    assert set(catalog.families()) <= names
    assert not registry.installed().broken, registry.installed().broken[0]


def test_catalogue_is_made_from_the_pyprojects() -> None:
    import importlib.util

    file = Path(__file__).parents[1] / "tools/catalog.py"
    spec = importlib.util.spec_from_file_location("catalog_tool", file)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.CATALOG.read_text(encoding="utf-8") == tool.text(), "run: nox -s catalog"
