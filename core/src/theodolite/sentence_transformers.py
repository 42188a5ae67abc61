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
    name = checkpoint.json(CONFIG).get("default_prompt_name")
    if name and profile.task is Task.EMBED and profile.named_prompts == "prefix":
        log.info("%s: default_prompt_name %r is not applied by default; pass --prompt-name %s", CONFIG, name, name)


def prompts(checkpoint: Checkpoint) -> dict[str, str]:
    """The checkpoint's own prompts by name, empty where it has none."""
    found = checkpoint.json(CONFIG).get("prompts") or {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def prompt(checkpoint: Checkpoint, name: str) -> str:
    """One of the checkpoint's prompts.

    :raises RequestError: if there is none of that name; the message lists those there are.
    """
    known = prompts(checkpoint)
    if name not in known:
        names = ", ".join(sorted(known)) or "none"
        raise RequestError(f"the checkpoint has no prompt named {name!r} (it has: {names})")
    return known[name]
