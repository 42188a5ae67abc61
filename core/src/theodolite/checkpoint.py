"""What is on disk of a checkpoint, read once: no model, no guess."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.errors import CheckpointError, Unsupported

if TYPE_CHECKING:
    import mlx.core as mx


SENTENCE_CONFIGS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
"""Names that sentence-transformers looks for, in its order."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder in the published (Hugging Face, sentence-transformers or mlx-community) layout.

    :raises CheckpointError: if the folder or its config.json is missing or is not what it should be.
    """

    path: Path
    name: str | None = None
    """What the user called it, where that is not the folder: ``OWNER/NAME``."""

    def __post_init__(self) -> None:
        if not self.path.is_dir():
            raise CheckpointError(f"{self.path}: no such folder")
        if self.is_adapter_only:
            raise Unsupported(
                f"{self.path} holds only a LoRA adapter (adapter_model.safetensors) and no base weights; adapters are "
                "not merged here: merge it into its base model, export the full checkpoint, and load that"
            )
        if not self.has("config.json"):
            raise CheckpointError(f"{self.path}: config.json is missing, so this is no checkpoint folder")
        # read now, so that a broken file is reported before anything else
        self.config, self.normalize, self.quantization  # noqa: B018

    def has(self, name: str) -> bool:
        """Whether the folder holds a file called ``name``; a link that points nowhere is an error.

        :raises CheckpointError: for a dangling link (an interrupted download).
        """
        file = self.path / name
        if file.is_symlink() and not file.exists():
            raise CheckpointError(f"{file} is a link to a file that is not there; download the checkpoint again")
        return file.is_file()

    def json(self, name: str) -> dict[str, Any]:
        """The object in a JSON file, or an empty one where there is no such file.

        :raises CheckpointError: if the file is not a JSON object.
        """
        if not self.has(name):
            return {}
        value = self.json_value(name)
        if not isinstance(value, dict):
            raise CheckpointError(f"{self.path / name}: an object was expected, not {_kind(value)}")
        return value

    def json_value(self, name: str) -> Any:
        """The value in a JSON file, or None where there is no such file."""
        if not self.has(name):
            return None
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8-sig"))
        except ValueError as error:
            raise CheckpointError(f"{self.path / name} is not valid JSON: {error}") from None
        except RecursionError:
            raise CheckpointError(f"{self.path / name} cannot be read: it is nested too deeply") from None

    def text(self, name: str) -> str | None:
        """The text of a file, or None where there is no such file."""
        if not self.has(name):
            return None
        try:
            return (self.path / name).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path / name} is not UTF-8 text: {error}") from None

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json."""
        return self.json("config.json")

    @property
    def model_type(self) -> str:
        """``model_type`` of config.json, empty where it has none."""
        return str(self.config.get("model_type") or "")

    @property
    def architecture(self) -> str:
        """``architectures[0]`` of config.json, empty where it has none."""
        names = self.config.get("architectures") or [""]
        return str(names[0]) if isinstance(names, list) else str(names)

    @property
    def normalize(self) -> bool:
        """Whether vectors are L2-normalized: true unless config.json says ``normalize: false``."""
        return flag(self.path / "config.json", self.config, "normalize", True)

    @property
    def is_classifier(self) -> bool:
        """Whether the architecture is a ``*ForSequenceClassification``: a reranker, never an embedder."""
        return self.architecture.endswith("ForSequenceClassification")

    @cached_property
    def modules(self) -> tuple[Module, ...]:
        """The entries of modules.json, in order; empty where there is none."""
        if not self.has("modules.json"):
            return ()
        entries = self.json_value("modules.json")
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise CheckpointError(f"{self.path / 'modules.json'}: a list of objects was expected")
        return tuple(Module(str(e.get("type", "")), str(e.get("path", "")), self) for e in entries)

    @cached_property
    def sentence_config(self) -> tuple[str, dict[str, Any]]:
        """The settings of sentence-transformers' Transformer module, empty where there are none, and their file."""
        name = next((name for name in SENTENCE_CONFIGS if self.has(name)), SENTENCE_CONFIGS[0])
        return name, self.json(name)

    @cached_property
    def pooling_folder(self) -> str | None:
        """The folder of the sentence-transformers pooling module, None where the checkpoint has none."""
        for module in self.modules:
            if module.name == "Pooling":
                return module.path
        return "1_Pooling" if self.has("1_Pooling/config.json") else None

    @property
    def quantization(self) -> dict[str, Any]:
        """The ``quantization`` block of config.json (mlx-community), empty where it has none."""
        for key in ("quantization", "quantization_config"):
            block = self.config.get(key)
            if block is not None and not isinstance(block, dict):
                raise CheckpointError(f"{self.path / 'config.json'}: {key} should be an object, not {_kind(block)}")
            if block:
                return block
        return {}

    @property
    def is_adapter_only(self) -> bool:
        """Whether the folder holds a LoRA adapter and no base weights."""
        names = {file.name for file in self.path.iterdir()}
        adapter = bool(names & {"adapter_model.safetensors", "adapter_model.bin"})
        return adapter and not any(_is_base(name) for name in names)

    @cached_property
    def label(self) -> str:
        """What the checkpoint is called: the last part of its name or repository, else the folder's name."""
        if self.name:
            return self.name.rsplit("/", 1)[-1]
        parts = self.path.absolute().parts
        for part in reversed(parts):
            if part.startswith("models--"):
                return part.split("--")[-1]
        return parts[-1]

    def weights(self) -> dict[str, mx.array]:
        """All tensors by their stored names, lazily read; those of a module folder come as ``2_Dense.linear.weight``.

        :raises CheckpointError: for a missing, truncated or unreadable file, named.
        """
        from theodolite import weights

        return weights.read(self)


@dataclass(frozen=True)
class Module:
    """One entry of modules.json."""

    type: str
    path: str
    checkpoint: Checkpoint

    @property
    def name(self) -> str:
        """The last part of the type: ``Transformer``, ``Pooling``, ``Dense``, ``Normalize``."""
        return self.type.rsplit(".", 1)[-1]

    @property
    def config(self) -> dict[str, Any]:
        """config.json of the module's folder, empty where it has none."""
        return self.checkpoint.json(f"{self.path}/config.json" if self.path else "config.json")


def flag(file: Path, values: dict[str, Any], key: str, default: bool) -> bool:
    """A key of a JSON file that is true or false; ``default`` where it is not there, or null.

    :raises CheckpointError: for any other value, which would be taken for one of the two.
    """
    value = values.get(key)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise CheckpointError(f"{file}: {key} should be true or false, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """A JSON value as an error tells it."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case _:
            text = json.dumps(value)
            return text if len(text) <= 40 else f"{text[:40]}..."


def _is_base(name: str) -> bool:
    stem = name.removesuffix(".index.json")
    return stem.endswith((".safetensors", ".bin")) and stem.startswith(("model", "pytorch_model", "weights"))
