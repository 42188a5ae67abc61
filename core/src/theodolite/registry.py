"""Discovery of plugins, election of one family for a checkpoint, and the typed facade over its hooks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy

from theodolite import catalog, defaults, hookspecs
from theodolite.errors import (
    AmbiguousCheckpoint,
    BrokenPlugin,
    CheckpointError,
    MissingPlugin,
    UnknownFamily,
)
from theodolite.values import Batch, Item, Pooling, Profile, Prompt, Task

if TYPE_CHECKING:
    import mlx.core as mx
    import mlx.nn as nn

    from theodolite.checkpoint import Checkpoint
    from theodolite.tokenize import Tokenizer

DEFAULTS = "theodolite-defaults"


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
                found[point.name] = (seen, Plugin(*_who(first), error=reason))
            continue
        try:
            found[point.name] = (point.value, Plugin(*_who(plugin), value=point.load()))
        except Exception as error:  # a plugin may fail in any way; `theodolite families` shows it
            found[point.name] = (point.value, Plugin(*_who(plugin), error=f"{type(error).__name__}: {error}"))
    return tuple(plugin for _, plugin in found.values())


def _who(plugin: Plugin) -> tuple[str, str, str]:
    return plugin.name, plugin.distribution, plugin.version


class Family:
    """The hooks of the elected family, typed; the only way in which the rest of the core calls a plugin."""

    def __init__(self, hook: pluggy.HookRelay, owner: Plugin, profile: Profile) -> None:
        self.plugin = owner
        self.profile = profile
        self._hook = hook

    def build(self, checkpoint: Checkpoint) -> nn.Module:
        model: nn.Module | None = self._hook.build(checkpoint=checkpoint, profile=self.profile)
        if model is None:
            raise BrokenPlugin(f"family {self.plugin} implements no build hook")
        return model

    def sanitize(self, checkpoint: Checkpoint, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        return self._hook.sanitize(checkpoint=checkpoint, weights=weights)

    def prompt(
        self, checkpoint: Checkpoint, item: Item, instruction: str | None, tokenizer: Tokenizer, limit: int
    ) -> Prompt:
        result: Prompt = self._hook.prompt(
            checkpoint=checkpoint, item=item, instruction=instruction, tokenizer=tokenizer, limit=limit
        )
        return result

    def forward(self, model: nn.Module, batch: Batch) -> mx.array:
        hidden: mx.array | None = self._hook.forward(model=model, batch=batch)
        if hidden is None:
            raise BrokenPlugin(f"family {self.plugin} implements no forward hook")
        return hidden

    def pool(self, model: nn.Module, hidden: mx.array, batch: Batch, mode: Pooling) -> mx.array:
        return self._hook.pool(model=model, hidden=hidden, batch=batch, mode=mode)


class Registry:
    """The families that can serve a checkpoint. Frozen once made: nothing can be registered later."""

    def __init__(self, plugins: Iterable[Plugin], observers: Iterable[Any] = ()) -> None:
        self.plugins = tuple(plugins)
        self._observers = tuple(observers)
        self._manager = _manager()
        loaded = []
        for plugin in self.plugins:
            if plugin.error is None:
                try:
                    self._manager.register(plugin.value, plugin.name)
                    loaded.append(plugin)
                except pluggy.PluginValidationError as error:
                    if self._manager.has_plugin(plugin.name):
                        self._manager.unregister(name=plugin.name)
                    reason = " ".join(str(error).split())
                    loaded.append(Plugin(*_who(plugin), error=f"its hooks do not fit: {reason}"))
            else:
                loaded.append(plugin)
        for observer in self._observers:
            self._manager.register(observer)
        self.plugins = tuple(loaded)

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
        claims = [(plugin, profile) for plugin in asked if (profile := self._claim(plugin, checkpoint, task))]
        if not claims:
            raise self._nobody(checkpoint, task, family)
        best = max(profile.fit for _, profile in claims)
        winners = [(plugin, profile) for plugin, profile in claims if profile.fit == best]
        if len(winners) > 1:
            names = " and ".join(str(plugin) for plugin, _ in winners)
            choices = " or ".join(f"--family {plugin.name}" for plugin, _ in winners)
            raise AmbiguousCheckpoint(f"{names} claim {checkpoint.path} alike; choose with {choices}")
        [(owner, profile)] = winners
        alone = _manager()  # calls through it need not leave out all other families each time
        alone.register(owner.value, owner.name)
        for observer in self._observers:
            alone.register(observer)
        return Family(alone.hook, owner, profile)

    def _claim(self, plugin: Plugin, checkpoint: Checkpoint, task: Task | None) -> Profile | None:
        others = [p.value for p in self.families if p is not plugin]
        caller = self._manager.subset_hook_caller("detect", others)
        answers: list[Profile] = caller(checkpoint=checkpoint, task=task)
        for profile in answers:
            if profile.family != plugin.name:
                raise BrokenPlugin(f"{plugin} claims {checkpoint.path} under another name, {profile.family!r}")
            if task is not None and profile.task is not task:
                return None
            if profile.task is Task.EMBED and checkpoint.is_classifier:
                return None  # a *ForSequenceClassification checkpoint is never an embedder
            return profile
        return None

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

    def _nobody(self, checkpoint: Checkpoint, task: Task | None, family: str | None) -> CheckpointError:
        what = f"model_type {checkpoint.model_type!r} ({checkpoint.architecture or 'no architectures'})"
        if family is not None:
            purpose = f" for {task.value}ing" if task else ""
            return UnknownFamily(f"family {family!r} does not serve {what} in {checkpoint.path}{purpose}")
        for plugin in self.broken:
            if catalog.serves(plugin.name, checkpoint, task):
                return BrokenPlugin(f"{what}: {plugin} is installed but did not load: {plugin.error}")
        if task is not None:
            other = Task.EMBED if task is Task.RERANK else Task.RERANK
            if any(self._quietly(plugin, checkpoint, other) for plugin in self.families):
                return UnknownFamily(_wrong_task(checkpoint, task))
        installed = {plugin.name for plugin in self.families}
        for name in catalog.families():
            if name not in installed and catalog.serves(name, checkpoint, task):
                line = catalog.install_line(name)
                return MissingPlugin(f"{what} is served by family {name!r}, which is not installed: {line}")
        if task is Task.RERANK:
            return UnknownFamily(f"Unsupported reranker model type: {what} in {checkpoint.path}")
        if task is Task.EMBED and checkpoint.pooling_folder is None:
            return UnknownFamily(
                f"{what} in {checkpoint.path} is not an embedding checkpoint: it has no pooling layout "
                "(modules.json, 1_Pooling/config.json), and its architecture is not an embedder's"
            )
        names = ", ".join(sorted(installed)) or "none"
        return UnknownFamily(
            f"no family serves {what} in {checkpoint.path} (installed: {names}); "
            "docs/writing-a-family.md shows how to write one"
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


def _manager() -> pluggy.PluginManager:
    """Knows the hooks and the core's own answers to them."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(defaults, DEFAULTS)
    return manager


_installed: Registry | None = None


def installed() -> Registry:
    """The registry of everything that is installed, discovered once per process."""
    global _installed
    if _installed is None:
        _installed = Registry(discover("theodolite.families"))
    return _installed


def hooks(group: str, *builtin: Any) -> tuple[pluggy.HookRelay, tuple[Plugin, ...]]:
    """The callable hooks of another entry-point group, with the core's own plugins, and what was found.

    A plugin that is broken is left out; it stands in the second value with its error.
    """
    registry = Registry((*(Plugin(p.__name__, "theodolite-core", "", p) for p in builtin), *discover(group)))
    return registry._manager.hook, registry.plugins
