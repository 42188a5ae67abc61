"""Election of one family: vetoes, fit, ties, broken and missing plugins."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

import theodolite
from theodolite import pooling, registry
from theodolite.checkpoint import Checkpoint
from theodolite.embedder import Embedder
from theodolite.engine import Options
from theodolite.errors import AmbiguousCheckpoint, BrokenPlugin, CheckpointError, MissingPlugin, UnknownFamily
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
        def build(self) -> nn.Module:
            built = nn.Module()
            built.by = name
            return built

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
    assert both.elect(checkpoint, None).build(checkpoint).by == "one"


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
    liar = registry.Plugin("honest", "dist", "1", claims("liar", model_type="own"))
    with pytest.raises(BrokenPlugin, match="'liar'"):
        registry.Registry([liar]).elect(Checkpoint(write({"model_type": "own"})), Task.EMBED)


def test_the_wrong_task_says_which_command_to_use(write) -> None:
    checkpoint = Checkpoint(write())
    with pytest.raises(UnknownFamily, match="theodolite embed"):
        registry.Registry([plugin("bert")]).elect(checkpoint, Task.RERANK)


def point(name: str, value: str, load: Any, dist: str) -> Any:
    return SimpleNamespace(name=name, value=value, load=load, dist=SimpleNamespace(name=dist, version="1"))


def test_discovery_takes_each_entry_point_once_and_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise ImportError("no such thing")

    def exits() -> None:
        raise SystemExit(2)

    points = [
        point("same", "a.b", lambda: "module", "root"),
        point("same", "a.b", lambda: "module", "member"),
        point("bad", "c", fails, "bad-dist"),
        point("exits", "f", exits, "bad-dist"),
        point("twice", "d", lambda: 1, "first"),
        point("twice", "e", lambda: 2, "second"),
    ]
    monkeypatch.setattr(metadata, "entry_points", lambda group: points)
    found = {plugin.name: plugin for plugin in registry.discover("any")}
    assert found["same"].value == "module"
    assert found["same"].error is None
    assert "ImportError: no such thing" in (found["bad"].error or "")
    assert found["exits"].error == "SystemExit: 2"
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


class Whole(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = mx.zeros((300, 4))


def family(**hooks: Any) -> registry.Plugin:
    """A plugin ``acme`` that serves the tiny BERT, with some hooks replaced; None leaves one out."""
    working = {
        "detect": lambda checkpoint: Profile(family="acme", fit=Fit.EXACT, vocab_size=300, dim=4),
        "build": lambda checkpoint: Whole(),
        "sanitize": lambda weights: {"table": mx.ones((300, 4))},
        "forward": lambda model, batch: model.table[batch.input_ids],
    }
    made = {name: staticmethod(hookimpl(hook)) for name, hook in {**working, **hooks}.items() if hook is not None}
    return registry.Plugin("acme", "dist-acme", "1.0", type("Acme", (), made)())


def fails(error: BaseException) -> Any:
    def hook(checkpoint: Checkpoint) -> None:
        raise error

    return hook


def vectors(write, **hooks: Any) -> Any:
    engine = Embedder(Checkpoint(write()), Task.EMBED, Options(), registry.Registry([family(**hooks)]))
    return engine.embed(["the cat sat", "rain"]).vectors


def test_a_whole_family_serves(write) -> None:
    assert vectors(write).shape == (2, 4)


@pytest.mark.parametrize(
    ("detect", "words"),
    [
        (fails(KeyError("nokey")), "detect raised KeyError: 'nokey'"),
        (fails(RuntimeError("two\nlines")), "detect raised RuntimeError: two lines"),
        (fails(SystemExit(3)), "detect raised SystemExit: 3"),
        (lambda checkpoint: "acme", "detect returned str 'acme', expected a Profile or None"),
        (lambda checkpoint: Profile(family="acme", fit=Fit.EXACT, vocab_size=9), "missing 1 required .*'dim'"),
        (
            lambda checkpoint: Profile(family="acme", fit=Fit.EXACT, vocab_size=9, dim=4, pooling="mean"),
            "Profile.pooling is 'mean', expected a Pooling",
        ),
    ],
)
def test_a_detect_that_fails_stops_nobody_else(write, detect, words, caplog) -> None:
    checkpoint, wrong = Checkpoint(write()), family(detect=detect)
    both = registry.Registry([wrong, plugin("bert")])
    assert both.elect(checkpoint, Task.EMBED).profile.family == "bert"
    assert re.search(rf"acme \(dist-acme 1.0\).*{words}", caplog.text)
    with pytest.raises(BrokenPlugin, match=words):
        both.elect(checkpoint, Task.EMBED, "acme")
    with pytest.raises(BrokenPlugin, match=rf"acme \(dist-acme 1.0\).*{words}"):
        registry.Registry([wrong]).elect(Checkpoint(write({"model_type": "own"})), Task.EMBED)
    with pytest.raises(MissingPlugin, match=rf"pip install theodolite-bert.*{words}"):
        registry.Registry([wrong]).elect(checkpoint, Task.EMBED)


def test_a_value_that_a_family_cannot_read_is_the_files_or_the_plugins_fault(write) -> None:
    folder = write({"model_type": "xlm-roberta", "pad_token_id": "x"})
    with pytest.raises(CheckpointError) as caught:
        theodolite.load(folder)
    assert str(caught.value).startswith(f"{folder}/config.json: family bert (")
    assert "could not read it: detect raised TypeError" in str(caught.value)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("value", ["x", None, [], {}, 0, -1, 1.5, True])
@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "intermediate_size", "max_position_embeddings"])
def test_values_of_the_wrong_kind_are_told_in_one_line(write, key: str, value: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        theodolite.load(write({key: value}))
    assert "\n" not in str(caught.value)


NUMPY = np.zeros((2, 7, 4), np.float32)


@pytest.mark.parametrize(
    ("hooks", "words"),
    [
        ({"build": lambda checkpoint: {}}, r"build returned dict \{\}, expected an mlx.nn.Module"),
        ({"build": None}, "build returned None, or is not implemented"),
        ({"build": fails(IndexError("far"))}, "config.json: family .*could not read it: build raised IndexError: far"),
        ({"build": fails(OSError("disk"))}, r"acme \(dist-acme 1.0\): build raised OSError: disk"),
        ({"sanitize": lambda weights: [1]}, r"sanitize returned list \[1\], expected a dict of names and mx.array"),
        ({"sanitize": lambda weights: {"table": NUMPY}}, r"sanitize returned 'table': numpy.ndarray \[2, 7, 4\]"),
        ({"prompt": lambda item: item.text}, "prompt returned str 'the cat sat', expected a Prompt"),
        ({"forward": lambda model: (1, 2)}, r"forward returned tuple \(1, 2\), expected an mx.array \[B, L, D\]"),
        ({"forward": lambda model: NUMPY}, r"forward returned numpy.ndarray \[2, 7, 4\], expected"),
        ({"forward": lambda model: None}, "forward returned None, or is not implemented"),
        ({"forward": lambda model: model.nothing}, "forward raised AttributeError"),
        ({"pool": lambda hidden: NUMPY}, r"pool returned numpy.ndarray \[2, 7, 4\], expected an mx.array"),
    ],
)
def test_an_answer_of_the_wrong_kind_names_plugin_hook_and_both(write, hooks, words) -> None:
    with pytest.raises(BrokenPlugin, match=words) as caught:
        vectors(write, **hooks)
    assert "acme (dist-acme 1.0)" in str(caught.value)


@pytest.mark.parametrize(
    "forward",
    [
        lambda model, batch: model.table[batch.input_ids][:, :1],
        lambda model, batch: model.table[batch.input_ids][:, 0],
        lambda model, batch: model.table[batch.input_ids][:1],
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_hidden_states_that_are_not_the_batchs_are_refused(write, forward, own: bool) -> None:
    hooks = {"pool": lambda hidden, batch, mode: pooling.pool(hidden, batch.attention_mask, mode)} if own else {}
    with pytest.raises(
        BrokenPlugin, match=r"acme \(dist-acme 1.0\): pool: .* are \[.*forward should return \[2, \d, D"
    ):
        vectors(write, forward=forward, **hooks)


def test_misspelt_and_missing_hooks_are_told_at_load() -> None:
    class Misspelt:
        @hookimpl
        def detect(self) -> None: ...

        @hookimpl
        def forwrd(self) -> None: ...

        @hookimpl(optionalhook=True)
        def of_a_later_core(self) -> None: ...

    class Undecorated:
        def detect(self) -> None: ...

    [first, second] = registry.Registry(
        [registry.Plugin("first", "dist", "1", Misspelt()), registry.Plugin("second", "dist", "1", Undecorated())]
    ).broken
    assert "there is no hook forwrd (" in (first.error or "")
    assert "there is no detect under @hookimpl" in (second.error or "")


def test_one_object_may_stand_behind_two_names() -> None:
    same = claims("one")
    found = registry.Registry([registry.Plugin("one", "dist", "1", same), registry.Plugin("two", "dist", "1", same)])
    assert not found.broken


def test_every_message_that_nobody_serves_tells_what_is_broken(write) -> None:
    broken = registry.Plugin("acme", "dist-acme", "1.0", error="SyntaxError: invalid syntax (acme.py, line 3)")
    found = registry.Registry([broken, plugin("bert")])
    checkpoint = Checkpoint(write({"model_type": "acme"}, drop=("1_Pooling/config.json",)))
    pooled = Checkpoint(write({"model_type": "acme"}))
    known = Checkpoint(write({"model_type": "modernbert"}))
    for one, task in ((checkpoint, Task.EMBED), (pooled, Task.EMBED), (pooled, Task.RERANK), (pooled, None)):
        with pytest.raises(UnknownFamily, match=r"acme \(dist-acme 1.0\) is installed but did not load: SyntaxError"):
            found.elect(one, task)
    with pytest.raises(MissingPlugin, match=r"pip install theodolite-modernbert.*acme .*did not load: SyntaxError"):
        found.elect(known, Task.EMBED)


@pytest.mark.parametrize(("task", "purpose"), [(Task.EMBED, "embedding"), (Task.RERANK, "reranking")])
def test_the_purpose_is_spelled(write, task: Task, purpose: str) -> None:
    with pytest.raises(UnknownFamily, match=f" for {purpose}$"):
        registry.Registry([plugin("other", model_type="other")]).elect(Checkpoint(write()), task, "other")


def asked(monkeypatch: pytest.MonkeyPatch, hook: str, implementation: Any, **arguments: Any) -> registry.Plugin:
    made = type("Acme", (), {hook: staticmethod(hookimpl(implementation))})()
    found = (registry.Plugin("acme", "dist-acme", "1.0", made),)
    monkeypatch.setattr(registry, "discover", lambda group: found if group == registry.GROUPS[hook] else ())
    [(who, answer)] = registry.ask(hook, **arguments)
    assert answer is None
    return who


@pytest.mark.parametrize("error", [KeyError("nokey"), SystemExit(1), BrokenPlugin("odd")])
@pytest.mark.parametrize(
    ("hook", "arguments"),
    [
        ("commands", {"subparsers": None}),
        ("routes", {"app": None}),
        ("kernels", {"device": "cpu"}),
    ],
)
def test_other_hooks_that_raise_stop_nobody(monkeypatch, caplog, error, hook, arguments) -> None:
    def raises() -> None:
        raise error

    told = f"{hook} raised {type(error).__name__}"
    assert told in (asked(monkeypatch, hook, raises, **arguments).error or "")
    assert f"acme (dist-acme 1.0): {told}" in caplog.text


def test_a_locator_may_refuse_but_not_break_the_others(monkeypatch) -> None:
    arguments = {"name": "a/b", "revision": None, "models_dir": None}

    def raises() -> None:
        raise ConnectionError("no route")

    def refuses() -> None:
        raise CheckpointError("a/b is mine, but gone")

    assert "ConnectionError" in (asked(monkeypatch, "locate", raises, **arguments).error or "")
    with pytest.raises(CheckpointError, match="is mine"):
        asked(monkeypatch, "locate", refuses, **arguments)
