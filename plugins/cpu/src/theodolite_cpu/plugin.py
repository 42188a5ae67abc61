"""The kernels table of the compiled extension, or the reason why there is none."""

from __future__ import annotations

import json
import logging
from functools import cache
from importlib import metadata, resources
from typing import Any

from theodolite.hookspecs import hookimpl
from theodolite.nn.kernels import Kernels

PRIORITY = 20
log = logging.getLogger("theodolite")


@cache
def load() -> tuple[Any, str | None]:
    """The module of operations, or None and the reason: it was not built, or for another MLX, or does not load here."""
    record = resources.files("theodolite_cpu").joinpath("build.json")
    if not record.is_file():
        return None, "the extension was not built"
    built = json.loads(record.read_text())
    if built["reason"] is not None:
        return None, f"the extension was not built: {built['reason']}"
    found = metadata.version("mlx")
    if built["mlx"].split(".")[:2] != found.split(".")[:2]:
        return None, f"the extension was built for MLX {built['mlx']}, MLX {found} is installed; install it again"
    try:
        import scipy_openblas32

        from theodolite_cpu import operations

        operations.setup(f"{scipy_openblas32.get_lib_dir()}/lib{scipy_openblas32.get_library()}.so")
    except ValueError as error:  # a wrong THEODOLITE_MAX_ISA; other kernels would run instead, and nobody be told
        log.warning("the cpu kernels are left out: %s", error)
        return None, str(error)
    except Exception as error:  # a missing symbol or library says so in its own words
        return None, f"the extension does not load: {error}"
    return operations, None


def reason() -> str | None:
    """Why there are no fast kernels here, None where there are."""
    return load()[1]


@hookimpl
def kernels(device: str) -> Kernels | str | None:
    if device != "cpu":
        return None
    operations, why = load()
    if why is not None:
        return f"cpu: {why}"
    return Kernels(
        name="cpu",
        priority=PRIORITY,
        bf16=operations.bf16,
        linear=operations.linear,
        linears=operations.linears,
        activation=operations.activation,
        gated=operations.gated,
        attention=operations.attention,
        layer_norm=operations.layer_norm,
        rms_norm=operations.rms_norm,
        add_layer_norm=operations.add_layer_norm,
        rope=operations.rope,
    )
