"""The sentence-transformers side files: every module and key is applied, refused by name, or known to do nothing.

Applied: ``1_Pooling`` (`theodolite.pooling`), ``max_seq_length`` (`theodolite.limits`), ``do_lower_case``
(`theodolite.tokenize`), ``prompts`` by name (`prompts`). Without effect: ``Normalize`` (vectors are L2-normalized
unless config.json says ``normalize: false``), ``Dropout`` (inference), ``similarity_fn_name``, ``__version__``.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from theodolite.errors import CheckpointError, RequestError, Unsupported
from theodolite.values import Task

if TYPE_CHECKING:
    from theodolite.checkpoint import Checkpoint
    from theodolite.values import Profile

APPLIED = frozenset({"Transformer", "Pooling", "Normalize", "Dropout"})
CONFIG = "config_sentence_transformers.json"
HARMLESS = frozenset({"trust_remote_code", "revision", "use_fast", "local_files_only", "cache_dir", "token"})
OUTPUTS = ("last_hidden_state", "token_embeddings", "logits")
"""What a Transformer module may hand on: a Pooling module's input, or a LogitScore's."""
log = logging.getLogger("theodolite")


def check(checkpoint: Checkpoint, profile: Profile) -> None:
    """Refuse what the side files ask for and nobody applies.

    :raises Unsupported: naming the module or key.
    """
    for module in checkpoint.modules:
        if module.name not in APPLIED | profile.modules:
            raise Unsupported(
                f"{checkpoint.path / 'modules.json'}: module {module.path or '.'} of type {module.type} is not applied "
                f"by family {profile.family!r}"
            )
    pooling = checkpoint.pooling_folder
    if pooling and not (profile.pooling_fixed or profile.multi_vector):
        settings = checkpoint.json(f"{pooling}/config.json")
        width = settings.get("word_embedding_dimension", settings.get("embedding_dimension"))
        hidden = checkpoint.config.get("hidden_size")
        if isinstance(width, int) and isinstance(hidden, int) and width != hidden:
            raise CheckpointError(
                f"{checkpoint.path / pooling / 'config.json'} says word_embedding_dimension {width}, "
                f"config.json says hidden_size {hidden}"
            )
    _check_settings(checkpoint, profile)
    name = checkpoint.json(CONFIG).get("default_prompt_name")
    if name and profile.task is Task.EMBED and profile.named_prompts == "prefix":
        log.info("%s: default_prompt_name %r is not applied by default; pass --prompt-name %s", CONFIG, name, name)


def _check_settings(checkpoint: Checkpoint, profile: Profile) -> None:
    """Refuse settings of the Transformer module that would change the numbers and are not applied."""
    name, settings = checkpoint.sentence_config
    for key in ("config_args", "config_kwargs", "tokenizer_args", "processor_kwargs"):
        if unknown := sorted(set(settings.get(key) or {}) - HARMLESS):
            raise Unsupported(f"{checkpoint.path / name}: {key} {unknown[0]!r} is not applied")
    if "max_length" in ((settings.get("processing_kwargs") or {}).get("text") or {}):
        raise Unsupported(f"{checkpoint.path / name}: processing_kwargs.text 'max_length' is not applied")
    for modality, how in (settings.get("modality_config") or {}).items():
        output = how.get("method_output_name") if isinstance(how, dict) else None
        if output is not None and output not in OUTPUTS and not profile.pooling_fixed:
            raise Unsupported(
                f"{checkpoint.path / name}: the {modality} modality gives {output!r}, only token embeddings are pooled"
            )


def prompts(checkpoint: Checkpoint) -> dict[str, str]:
    """The checkpoint's own prompts by name, empty where it has none.

    :raises CheckpointError: for a prompt that is no text.
    """
    found = checkpoint.json(CONFIG).get("prompts") or {}
    if not isinstance(found, dict) or not all(isinstance(text, str | None) for text in found.values()):
        raise CheckpointError(f"{checkpoint.path / CONFIG}: prompts should be an object of texts")
    return {name: text or "" for name, text in found.items()}


def prompt(checkpoint: Checkpoint, name: str) -> str:
    """One of the checkpoint's prompts.

    :raises RequestError: if there is none of that name; the message lists those there are.
    """
    known = prompts(checkpoint)
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise RequestError(f"the checkpoint has no prompt named {name!r} (it has: {names})")
    return known[name]
