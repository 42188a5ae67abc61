"""Discovery of plugins, election of one family for a checkpoint, and the typed facade over its hooks."""

from __future__ import annotations

import logging
import reprlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy

from theodolite import catalog, defaults, hookspecs
from theodolite.errors import (
    AmbiguousCheckpoint,
    BrokenPlugin,
    CheckpointError,
    MissingPlugin,
    TheodoliteError,
    UnknownFamily,
)
from theodolite.values import Batch, Item, Pooling, Profile, Prompt, Task

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

    from theodolite.checkpoint import Checkpoint
    from theodolite.tokenize import Tokenizer

DEFAULTS = "theodolite-defaults"
PURPOSES = {Task.EMBED: "embedding", Task.RERANK: "reranking"}
GROUPS = {
    "detect": "theodolite.families",
    "locate": "theodolite.locators",
    "kernels": "theodolite.kernels",
    "commands": "theodolite.commands",
    "routes": "theodolite.routes",
}
"""Entry-point groups, by the hook that a plugin of the group has to implement."""
READERS = ("detect", "build", "sanitize")
"""Hooks that read what a checkpoint's author wrote."""
MISREAD = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)
"""What Python raises where a value is of another kind than the code supposed."""
ANYTHING = (Exception, SystemExit)
"""All that a plugin may raise and that should not end the process: a module may call sys.exit."""
log = logging.getLogger("theodolite")


@dataclass(frozen=True, slots=True)
class Plugin:
    """One entry point: where it comes from, and either the loaded object or the reason why there is none."""

    name: str
    distribution: str
    version: str
    value: Any = None
    error: str | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.distribution} {self.version})"


def discover(group: str) -> tuple[Plugin, ...]:
    """Load every entry point of ``group``, each on its own, so that a broken one stops nobody else."""
    found: dict[str, tuple[str, Plugin]] = {}
    for point in sorted(metadata.entry_points(group=group), key=lambda p: (p.name, p.value)):
        dist = point.dist
        plugin = Plugin(point.name, dist.name if dist else "unknown", dist.version if dist else "0")
        if point.name in found:
            seen, first = found[point.name]
            if seen != point.value:
                reason = f"two distributions provide {point.name!r}: {first.distribution} and {plugin.distribution}"
                found[point.name] = (seen, replace(first, value=None, error=reason))
            continue
        try:
            plugin = replace(plugin, value=point.load())
        except ANYTHING as error:
            plugin = replace(plugin, error=_told(error))
        found[point.name] = (point.value, plugin)
    return tuple(plugin for _, plugin in found.values())


def _told(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _relay(plugin: Plugin, needed: str) -> pluggy.HookRelay:
    """The hooks of one plugin alone, with the core's own answers where it gives none.

    :raises Exception: for a plugin that pluggy refuses, hooks that are none, and one without the hook ``needed``.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(defaults, DEFAULTS)
    manager.register(plugin.value, plugin.name)
    callers = manager.get_hookcallers(plugin.value) or []
    unknown = [
        caller.name
        for caller in callers
        if not (caller.has_spec() or all(implemented.optionalhook for implemented in caller.get_hookimpls()))
    ]
    if unknown:
        raise BrokenPlugin(f"there is no hook {', '.join(sorted(unknown))} (see docs/hooks.md)")
    if needed not in {caller.name for caller in callers}:
        raise BrokenPlugin(f"there is no {needed} under @hookimpl")
    return manager.hook


class Family:
    """The hooks of the elected family, typed; the only way in which the rest of the core calls a plugin."""

    def __init__(self, hook: pluggy.HookRelay, owner: Plugin, profile: Profile) -> None:
        self.plugin = owner
        self.profile = profile
        self._hook = hook

    def build(self, checkpoint: Checkpoint) -> nn.Module:
        import mlx.nn as nn

        return self._answer("build", nn.Module, "an mlx.nn.Module", checkpoint=checkpoint, profile=self.profile)

    def sanitize(self, checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        import mlx.core as mx

        wanted = "a dict of names and mx.array"
        found: dict[str, mx.array] = self._answer("sanitize", dict, wanted, checkpoint=checkpoint, weights=weights)
        for name, tensor in found.items():
            if not (isinstance(name, str) and isinstance(tensor, mx.array)):
                raise self._wrong("sanitize", f"{name!r}: {shown(tensor)}", wanted)
        return found

    def prompt(
        self, checkpoint: Checkpoint, item: Item, instruction: str | None, tokenizer: Tokenizer, limit: int
    ) -> Prompt:
        return self._answer(
            "prompt",
            Prompt,
            "a Prompt",
            checkpoint=checkpoint,
            item=item,
            instruction=instruction,
            tokenizer=tokenizer,
            limit=limit,
        )

    def forward(self, model: nn.Module, batch: Batch) -> mx.array:
        import mlx.core as mx

        return self._answer("forward", mx.array, "an mx.array [B, L, D]", model=model, batch=batch)

    def pool(self, model: nn.Module, hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
        import mlx.core as mx

        return self._answer("pool", mx.array, "an mx.array", model=model, hidden=hidden, batch=batch, mode=mode)

    def _answer(self, hook: str, kind: type, wanted: str, **arguments: Any) -> Any:
        answer = _called(self.plugin, self._hook, hook, arguments)
        if answer is None:
            raise BrokenPlugin(f"family {self.plugin}: {hook} returned None, or is not implemented")
        if not isinstance(answer, kind):
            raise self._wrong(hook, shown(answer), wanted)
        return answer

    def _wrong(self, hook: str, found: str, wanted: str) -> BrokenPlugin:
        return BrokenPlugin(f"family {self.plugin}: {hook} returned {found}, expected {wanted}")


def _called(plugin: Plugin, relay: pluggy.HookRelay, hook: str, arguments: dict[str, Any]) -> Any:
    """Call a family's hook.

    :raises BrokenPlugin: for all that it raises, except the errors by which a family refuses.
    """
    try:
        return _one(relay, hook, arguments)
    except BrokenPlugin as error:  # raised by what the hook called, which knows no plugin
        raise BrokenPlugin(f"family {plugin}: {hook}: {error}") from error
    except TheodoliteError:
        raise
    except ANYTHING as error:
        if hook not in READERS or not isinstance(error, MISREAD):
            raise BrokenPlugin(f"family {plugin}: {hook} raised {_told(error)}") from error
        file = arguments["checkpoint"].path / "config.json"
        raise BrokenPlugin(
            f"{file}: family {plugin} could not read it: {hook} raised {_told(error)} "
            "(a value of the file is of the wrong kind, or the plugin is at fault)"
        ) from error


def _one(relay: pluggy.HookRelay, hook: str, arguments: dict[str, Any]) -> Any:
    """The answer of a relay's one plugin, whether the hook's answers are collected or not."""
    caller: pluggy.HookCaller = getattr(relay, hook)
    found = caller(**arguments)
    return found if caller.spec is None or caller.spec.opts["firstresult"] else next(iter(found), None)


def shown(answer: Any) -> str:
    """What a hook returned, in a few words."""
    kind = type(answer)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    if hasattr(answer, "shape"):  # an array's text would be computed
        return f"{name} {list(answer.shape)}"
    text = " ".join(reprlib.repr(answer).split())
    return f"{name} {text}" if len(text) <= 40 else name


class Registry:
    """The families that can serve a checkpoint. Frozen once made: nothing can be registered later."""

    def __init__(self, plugins: Iterable[Plugin], needed: str = "detect") -> None:
        """
        :param needed: the hook without which a plugin is none of its group.
        """
        self._relays: dict[str, pluggy.HookRelay] = {}
        self.plugins = tuple(_registered(plugin, needed, self._relays) for plugin in plugins)

    @property
    def families(self) -> tuple[Plugin, ...]:
        """Plugins that loaded."""
        return tuple(plugin for plugin in self.plugins if plugin.error is None)

    @property
    def broken(self) -> tuple[Plugin, ...]:
        """Plugins that are installed but did not load, each with the reason."""
        return tuple(plugin for plugin in self.plugins if plugin.error is not None)

    def elect(self, checkpoint: Checkpoint, task: Task | None, family: str | None = None) -> Family:
        """Choose the family that serves ``checkpoint``.

        :param family: ask this family only (``--family``).
        :raises UnknownFamily: nobody claims it; the message says what to install, or what was found.
        :raises AmbiguousCheckpoint: two families claim it with the same fit.
        """
        asked = self.families if family is None else (self._named(family),)
        claims: list[tuple[Plugin, Profile]] = []
        faults: list[tuple[Plugin, BrokenPlugin]] = []
        for plugin in asked:
            try:
                if profile := self._claim(plugin, checkpoint, task):
                    claims.append((plugin, profile))
            except BrokenPlugin as error:
                faults.append((plugin, error))
        if not claims:
            raise self._nobody(checkpoint, task, family, faults)
        for _, fault in faults:
            log.warning("%s", fault)
        best = max(profile.fit for _, profile in claims)
        winners = [(plugin, profile) for plugin, profile in claims if profile.fit == best]
        if len(winners) > 1:
            names = " and ".join(str(plugin) for plugin, _ in winners)
            choices = " or ".join(f"--family {plugin.name}" for plugin, _ in winners)
            raise AmbiguousCheckpoint(f"{names} claim {checkpoint.path} alike; choose with {choices}")
        [(owner, profile)] = winners
        return Family(self._relays[owner.name], owner, profile)

    def _claim(self, plugin: Plugin, checkpoint: Checkpoint, task: Task | None) -> Profile | None:
        arguments = {"checkpoint": checkpoint, "task": task}
        profile = _called(plugin, self._relays[plugin.name], "detect", arguments)
        if profile is None:
            return None
        if not isinstance(profile, Profile):
            raise BrokenPlugin(f"family {plugin}: detect returned {shown(profile)}, expected a Profile or None")
        if profile.family != plugin.name:
            raise BrokenPlugin(f"{plugin} claims {checkpoint.path} under another name, {profile.family!r}")
        if task is not None and profile.task is not task:
            return None
        if profile.task is Task.EMBED and checkpoint.is_classifier:
            return None  # a *ForSequenceClassification checkpoint is never an embedder
        return profile

    def _named(self, family: str) -> Plugin:
        for plugin in self.plugins:
            if plugin.name == family:
                if plugin.error is not None:
                    raise BrokenPlugin(f"{plugin} is installed but did not load: {plugin.error}")
                return plugin
        installed = ", ".join(plugin.name for plugin in self.families) or "none"
        if (line := catalog.install_line(family)) is not None:
            raise MissingPlugin(f"family {family!r} is not installed: {line}")
        raise UnknownFamily(f"there is no family {family!r} (installed: {installed})")

    def _nobody(
        self,
        checkpoint: Checkpoint,
        task: Task | None,
        family: str | None,
        faults: list[tuple[Plugin, BrokenPlugin]],
    ) -> CheckpointError:
        what = f"model_type {checkpoint.model_type!r} ({checkpoint.architecture or 'no architectures'})"
        if family is not None:
            purpose = f" for {PURPOSES[task]}" if task else ""
            refusal = UnknownFamily(f"family {family!r} does not serve {what} in {checkpoint.path}{purpose}")
            return faults[0][1] if faults else refusal
        for plugin, fault in faults:
            if catalog.serves(plugin.name, checkpoint, task):
                return fault
        for plugin in self.broken:
            if catalog.serves(plugin.name, checkpoint, task):
                return BrokenPlugin(f"{what}: {plugin} is installed but did not load: {plugin.error}")
        if task is not None:
            other = Task.EMBED if task is Task.RERANK else Task.RERANK
            if any(self._quietly(plugin, checkpoint, other) for plugin in self.families):
                return UnknownFamily(_wrong_task(checkpoint, task))
        # whose the checkpoint is cannot be known, so all that might have served it are told
        told = [str(fault) for _, fault in faults]
        told += [f"{plugin} is installed but did not load: {plugin.error}" for plugin in self.broken]
        broken = "".join(f"; {line}" for line in told)
        installed = {plugin.name for plugin in self.families}
        for name in catalog.families():
            if name not in installed and catalog.serves(name, checkpoint, task):
                line = catalog.install_line(name)
                return MissingPlugin(f"{what} is served by family {name!r}, which is not installed: {line}{broken}")
        if faults:
            return BrokenPlugin("; ".join(told))
        if task is Task.RERANK:
            return UnknownFamily(f"Unsupported reranker model type: {what} in {checkpoint.path}{broken}")
        if task is Task.EMBED and checkpoint.pooling_folder is None:
            return UnknownFamily(
                f"{what} in {checkpoint.path} is not an embedding checkpoint: it has no pooling layout "
                f"(modules.json, 1_Pooling/config.json), and its architecture is not an embedder's{broken}"
            )
        names = ", ".join(sorted(installed)) or "none"
        return UnknownFamily(
            f"no family serves {what} in {checkpoint.path} (installed: {names}); "
            f"docs/writing-a-family.md shows how to write one{broken}"
        )

    def _quietly(self, plugin: Plugin, checkpoint: Checkpoint, task: Task) -> bool:
        try:
            return self._claim(plugin, checkpoint, task) is not None
        except CheckpointError:
            return False


def _wrong_task(checkpoint: Checkpoint, task: Task) -> str:
    if task is Task.RERANK:
        return (
            f"{checkpoint.path} is an embedding checkpoint ({checkpoint.architecture}), not a reranker; "
            "use it with `theodolite embed` or --embedding-model"
        )
    return (
        f"{checkpoint.path} is a reranker ({checkpoint.architecture}), not an embedding checkpoint; "
        "use it with `theodolite rerank` or --reranker-model"
    )


def _registered(plugin: Plugin, needed: str, relays: dict[str, pluggy.HookRelay]) -> Plugin:
    """The plugin with its hooks in ``relays``, or with the reason why it has none that fit."""
    if plugin.error is not None:
        return plugin
    try:
        relays[plugin.name] = _relay(plugin, needed)
    except ANYTHING as error:
        said = isinstance(error, (BrokenPlugin, pluggy.PluginValidationError))
        reason = " ".join(str(error).split()) if said else _told(error)
        return replace(plugin, value=None, error=f"its hooks do not fit: {reason}")
    return plugin


_installed: Registry | None = None


def installed() -> Registry:
    """The registry of everything that is installed, discovered once per process."""
    global _installed
    if _installed is None:
        _installed = Registry(discover("theodolite.families"))
    return _installed


def ask(hook: str, **arguments: Any) -> Iterator[tuple[Plugin, Any]]:
    """Ask the plugins of another group, each on its own when its turn comes: who, and the answer.

    One that does not load, or whose hook raises, is logged and comes with its error; it stops nobody else.

    :param hook: a key of `GROUPS`.
    :raises CheckpointError: as a locator's refusal.
    """
    relays: dict[str, pluggy.HookRelay] = {}
    for found in discover(GROUPS[hook]):
        plugin, answer = _registered(found, hook, relays), None
        if plugin.error is not None:
            log.warning("%s did not load: %s", plugin, plugin.error)
        else:
            try:
                answer = _one(relays[plugin.name], hook, arguments)
            except ANYTHING as error:
                if hook == "locate" and isinstance(error, CheckpointError):
                    raise
                plugin = replace(plugin, error=f"{hook} raised {_told(error)}")
                log.warning("%s: %s", plugin, plugin.error)
        yield plugin, answer
