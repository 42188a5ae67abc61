"""Every operation of the compiled kernels against MLX's own, over shapes that cross its blocks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import theodolite_cpu
from theodolite.nn import kernels, masks
from theodolite_cpu import plugin

operations: Any = plugin.load()[0]
RNG = np.random.default_rng(0)
ACTS = [None, *kernels.ACTIVATIONS]


def array(*shape: int) -> mx.array:
    return mx.array(RNG.standard_normal(shape).astype(np.float32))


def close(found: mx.array, wanted: mx.array, tolerance: float = 1e-5) -> None:
    a, b = np.array(found), np.array(wanted)
    assert a.shape == b.shape
    assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max())


def test_built_here_or_the_reason_is_told() -> None:
    """A machine with a compiler builds the extension; one without says so and computes by other tables."""
    table = plugin.kernels("cpu")
    if theodolite_cpu.reason() is None:
        assert isinstance(table, kernels.Kernels)
        assert kernels.usable()[0]["cpu"].priority == 20
    else:
        assert table == f"cpu: {theodolite_cpu.reason()}"
        assert table in kernels.usable()[2]
        assert "cpu" not in kernels.usable()[0]


def test_this_machine_has_a_compiler_so_it_must_be_built() -> None:
    import shutil

    if shutil.which("g++"):
        assert theodolite_cpu.reason() is None


built = pytest.mark.skipif(theodolite_cpu.reason() is not None, reason=str(theodolite_cpu.reason()))
tiled = pytest.mark.skipif(
    theodolite_cpu.reason() is not None or not operations._ops.tiles(), reason="products are OpenBLAS's here"
)


@built
@pytest.mark.parametrize(("m", "n", "k"), [(1, 7, 5), (3, 384, 384), (100, 64, 33), (1100, 96, 64), (97, 17, 64)])
@pytest.mark.parametrize("act", ACTS)
def test_linear(m: int, n: int, k: int, act: str | None) -> None:
    x, weight, bias = array(m, k) * 0.3, array(n, k) * 0.3, array(n)
    close(operations.linear(x, weight, bias, act), kernels.linear(x, weight, bias, act))
    close(operations.linear(x[None], weight, None, act), kernels.linear(x[None], weight, None, act))


@built
@pytest.mark.parametrize("m", [1, 2, 5, 6, 7, 13, 14, 15, 24, 25, 96, 97, 99, 205])
@pytest.mark.parametrize(("n", "k"), [(16, 8), (15, 7), (33, 400), (300, 65), (64, 1000), (48, 1024), (40, 2050)])
def test_products_of_every_remainder_of_a_tile(m: int, n: int, k: int) -> None:
    x, weight, bias = array(m, k), array(n, k), array(n)
    exact = np.array(x).astype(np.float64) @ np.array(weight).astype(np.float64).T + np.array(bias)
    np.testing.assert_allclose(np.array(operations.linear(x, weight, bias)), exact, atol=1e-6 * k**0.5 * 4)
    unpacked = operations._ops.linear(x, weight, bias, 0)
    np.testing.assert_allclose(np.array(unpacked), exact, atol=1e-6 * k**0.5 * 4)


@built
@pytest.mark.parametrize("m", [1, 13, 15, 97])
@pytest.mark.parametrize(("n", "k"), [(16, 8), (15, 7), (33, 400), (300, 66), (48, 2048)])
def test_products_with_a_bfloat16_weight(m: int, n: int, k: int) -> None:
    """Where the processor multiplies it both sides are rounded to it, elsewhere the weight alone; sums are float32."""
    x, weight, bias = array(m, k), array(n, k).astype(mx.bfloat16), array(n)
    weight_values = np.array(weight.astype(mx.float32)).astype(np.float64)
    rounded = x.astype(mx.bfloat16).astype(mx.float32) if operations.bf16 and k % 2 == 0 else x
    exact = np.array(rounded).astype(np.float64) @ weight_values.T + np.array(bias)
    found = operations.linear(x, weight, bias)
    assert found.dtype == mx.float32
    np.testing.assert_allclose(np.array(found), exact, atol=1e-6 * k**0.5 * 4)
    assert weight.dtype == mx.bfloat16
    np.testing.assert_array_equal(np.array(weight.astype(mx.float32)), weight_values)  # packed, and read back
    passing = operations.linear(x, weight + 0, bias)  # not packed: made in passing
    np.testing.assert_allclose(
        np.array(passing), np.array(x) @ weight_values.T + np.array(bias), atol=1e-6 * k**0.5 * 4
    )


@tiled
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize(("n", "k"), [(33, 65), (48, 400), (40, 2050)])
def test_the_product_of_a_row_does_not_depend_on_the_others(n: int, k: int, dtype: mx.Dtype) -> None:
    x, weight = array(150, k), array(n, k).astype(dtype)
    together = np.array(operations.linear(x, weight))
    for few in (1, 5, 13, 16, 24, 25, 98):
        np.testing.assert_array_equal(np.array(operations.linear(x[:few], weight)), together[:few])


@built
def test_several_layers_at_once_are_as_one_by_one() -> None:
    x = array(2, 19, 40)
    layers = [(array(64, 40), array(64)), (array(17, 40), None), (array(32, 40), array(32))]
    for dtypes in ([mx.float32] * 3, [mx.bfloat16] * 3, [mx.float32, mx.bfloat16, mx.float16]):
        stored = [(weight.astype(dtype), bias) for (weight, bias), dtype in zip(layers, dtypes, strict=True)]
        for found, (weight, bias) in zip(operations.linears(x, stored), stored, strict=True):
            assert found.shape == (2, 19, weight.shape[0])
            np.testing.assert_array_equal(np.array(found), np.array(operations.linear(x, weight, bias)))


@tiled
@pytest.mark.parametrize("length", [5, 37, 97])
@pytest.mark.parametrize("causal", [False, True])
def test_padding_does_not_change_the_attention_of_a_row(length: int, causal: bool) -> None:
    q, k, v = (array(1, 2, 120, 32) for _ in range(3))
    real = mx.array((np.arange(120) < length).astype(np.int32))[None]
    padded = operations.attention(q, k, v, 0.2, masks.Mask(real, causal=causal, window=None))
    alone = [part[:, :, :length] for part in (q, k, v)]
    exact = operations.attention(*alone, 0.2, masks.Mask(real[:, :length], causal=causal, window=None))
    np.testing.assert_array_equal(np.array(padded)[:, :length], np.array(exact))


@built
def test_a_float16_weight_counts_in_float32() -> None:
    x, weight = array(9, 50), array(20, 50).astype(mx.float16)
    exact = np.array(x) @ np.array(weight.astype(mx.float32)).T
    np.testing.assert_allclose(np.array(operations.linear(x, weight)), exact, atol=2e-5)
    assert weight.dtype == mx.float16


@built
@pytest.mark.parametrize("isa", ["none", "avx2", "avx512"])
def test_every_older_instruction_set_computes_the_same(isa: str) -> None:
    """The tests of products and attention again, on a processor that pretends to be older."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "product or attention"]
    environment = {**os.environ, "THEODOLITE_MAX_ISA": isa}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


@built
def test_an_instruction_set_that_is_misspelled_is_named() -> None:
    script = "import theodolite_cpu; print(theodolite_cpu.reason())"
    environment = {**os.environ, "THEODOLITE_MAX_ISA": "avx1024"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert "THEODOLITE_MAX_ISA is avx1024, not none, avx2, avx512 or avx512_bf16" in done.stdout
    assert "the cpu kernels are left out" in done.stderr


@tiled
def test_a_packed_weight_is_held_once_ends_with_its_model_and_can_be_read_back() -> None:
    weight = array(1001, 999)
    values, key = np.array(weight), id(weight)
    before = mx.get_active_memory()
    assert operations.packed(weight) is operations.packed(weight)
    assert mx.get_active_memory() <= before - values.nbytes
    np.testing.assert_array_equal(np.array(weight), values)
    del weight
    assert key not in operations.Packed.known


@built
def test_a_packed_weight_can_be_read_on_a_thread_that_did_not_pack_it() -> None:
    weight, x = array(64, 48), array(5, 48)
    values = np.array(weight)
    thread = threading.Thread(target=lambda: mx.eval(operations.linear(x + 0, weight)))
    thread.start()
    thread.join()
    np.testing.assert_array_equal(np.array(weight), values)


@built
def test_a_weight_that_is_written_to_counts_from_then_on() -> None:
    weight, x = array(64, 48), array(5, 48)
    for change in range(3):
        close(operations.linear(x, weight), x @ weight.T)
        weight[change] = 7.0
        mx.eval(weight)
    close(operations.linear(x, weight), x @ weight.T)


@built
def test_a_weight_made_in_the_forward_pass_is_not_computed_ahead_of_it() -> None:
    whole, x = array(96, 48), array(5, 48)
    part = whole.split(3)[1]
    y = operations.linear(x, part)
    assert operations.packed(part) is None
    close(y, kernels.linear(x, part))


@built
@pytest.mark.parametrize("act", ACTS[1:])
def test_activations_and_gates(act: str) -> None:
    x = array(3, 7, 80) * 3
    close(operations.activation(x, act), kernels.activation(x, act))
    gate, up = mx.split(x, 2, axis=-1)
    close(operations.gated(gate, up, act), kernels.gated(gate, up, act))
    turned = (gate.swapaxes(0, 2), up.swapaxes(0, 2))
    close(operations.gated(*turned, act), kernels.gated(*turned, act))


@built
def test_gelu_is_as_exact_as_float32_allows() -> None:
    """``1 + erf`` cancels on the left, so the error is counted in last places of ``x``: two of them at most."""
    x = np.linspace(-12, 12, 20001).astype(np.float32)
    exact = [0.5 * t * (1 + math.erf(t / math.sqrt(2))) for t in x.astype(np.float64)]
    found = np.array(operations.activation(mx.array(x), "gelu"))
    assert (np.abs(found - exact) / np.maximum(1, np.abs(x))).max() <= 2 * np.finfo(np.float32).eps


@built
def test_norms() -> None:
    x, other, weight, bias = array(5, 70, 40), array(5, 70, 40), array(40), array(40)
    close(operations.layer_norm(x, weight, bias, 1e-5), kernels.layer_norm(x, weight, bias, 1e-5))
    close(operations.layer_norm(x, weight, None, 1e-5), kernels.layer_norm(x, weight, None, 1e-5))
    close(operations.layer_norm(x, None, None, 1e-5), kernels.layer_norm(x, None, None, 1e-5))
    close(operations.add_layer_norm(x, other, weight, bias, 1e-5), kernels.add_layer_norm(x, other, weight, bias, 1e-5))
    close(operations.rms_norm(x, weight, 1e-6), kernels.rms_norm(x, weight, 1e-6))
    turned = x.swapaxes(0, 1)
    close(operations.rms_norm(turned, weight, 1e-6), kernels.rms_norm(turned, weight, 1e-6))


SHAPES = [(2, 4, 2, 37, 8), (1, 2, 2, 1, 16), (3, 8, 1, 200, 64), (1, 4, 4, 1100, 32), (2, 3, 3, 130, 256)]


@built
@pytest.mark.parametrize(("b", "h", "kv", "length", "width"), SHAPES)
def test_attention_and_rope(b: int, h: int, kv: int, length: int, width: int) -> None:
    q, k, v = (array(b, length, heads, width).swapaxes(1, 2) for heads in (h, kv, kv))
    close(operations.attention(q, k, v, width**-0.5, None), kernels.attention(q, k, v, width**-0.5, None))
    real = np.ones((b, length), np.int32)
    if length > 20:
        real[0, length - 9 :] = 0
        real[-1, 7] = 0
    if b > 1:
        real[1, :5] = 0
    for causal in (False, True):
        for window in (None, 1, 5, 64):
            mask = masks.Mask(mx.array(real), causal=causal, window=window)
            found = np.array(operations.attention(q, k, v, width**-0.5, mask))
            wanted = np.array(kernels.attention(q, k, v, width**-0.5, mask))
            assert np.isfinite(found).all()
            for row in range(b):
                keep = real[row] == 1
                np.testing.assert_allclose(found[row, keep], wanted[row, keep], atol=1e-5)
    waves = mx.array((100.0 ** (np.arange(0, width, 2) / width)).astype(np.float32))
    angles = np.arange(length)[:, None] / np.array(waves).astype(np.float64)
    first, second = np.split(np.array(q).astype(np.float64), 2, axis=-1)
    cos, sin = np.cos(angles), np.sin(angles)
    exact = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    np.testing.assert_allclose(np.array(operations.rope(q, waves)), exact, atol=3e-6)


@built
@pytest.mark.parametrize("head_dim", [None, 16])
def test_projections_can_be_split_into_heads(head_dim: int | None) -> None:
    """As the attention reads them, whether the weights are packed or not."""
    x, layers = array(2, 19, 40), [(array(64, 40), array(64)), (array(32, 40), None)]
    for given in (layers, [(weight + 0, bias) for weight, bias in layers]):
        for found, (weight, bias) in zip(operations.linears(x, given, head_dim), layers, strict=True):
            wanted = kernels.linear(x, weight, bias)
            close(found, wanted if head_dim is None else kernels.split_heads(wanted, head_dim))


@built
def test_other_number_formats_and_lengths_go_to_mlx() -> None:
    x, weight = array(4, 8).astype(mx.float16), array(6, 8).astype(mx.float16)
    assert operations.linear(x, weight).dtype == mx.float16
    q, k = array(1, 2, 1, 8), array(1, 2, 9, 8)
    close(operations.attention(q, k, k, 0.3, None), kernels.attention(q, k, k, 0.3, None))
    assert operations.rms_norm(mx.zeros((0, 8)), None, 1e-6).shape == (0, 8)


def outcome(call: Any) -> np.ndarray | None:
    """What a call computes; None for an error of MLX's."""
    try:
        made = call()
        return np.array(made) if isinstance(made, mx.array) else np.array([np.array(each) for each in made])
    except ValueError:
        return None


def mask(rows: int, length: int) -> masks.Mask:
    return masks.padding(mx.ones((rows, length), mx.int32))


UNFIT: dict[str, Any] = {
    "x of another width": lambda k: k.linear(array(3, 6), array(4, 8), None, None),
    "x of another width, in pieces": lambda k: k.linear(array(3, 600), array(400, 800), None, None),
    "a bias of one number": lambda k: k.linear(mx.ones((3, 8)), mx.ones((4, 8)), mx.ones((1,)), None),
    "a bias of a row each": lambda k: k.linear(mx.ones((3, 8)), mx.ones((4, 8)), mx.ones((3, 4)), None),
    "a short norm": lambda k: k.layer_norm(array(3, 8), mx.ones((4,)), None, 1e-5),
    "a norm's short shift": lambda k: k.layer_norm(array(3, 8), mx.ones((8,)), mx.ones((4,)), 1e-5),
    "a short root mean square": lambda k: k.rms_norm(array(3, 8), mx.ones((4,)), 1e-5),
    "a gate over one row": lambda k: k.gated(mx.ones((3, 8)), mx.ones((1, 8)), "silu"),
    "keys of one row": lambda k: k.attention(array(3, 2, 5, 8), array(1, 2, 5, 8), array(1, 2, 5, 8), 0.3, None),
    "heads that cannot share": lambda k: k.attention(
        array(1, 3, 5, 8), array(1, 2, 5, 8), array(1, 2, 5, 8), 0.3, None
    ),
    "more keys than heads": lambda k: k.attention(array(1, 2, 5, 8), array(1, 4, 5, 8), array(1, 4, 5, 8), 0.3, None),
    "a short mask": lambda k: k.attention(*[array(3, 2, 50, 8)] * 3, 0.3, mask(3, 5)),
    "one mask for all rows": lambda k: k.attention(*[mx.ones((3, 2, 5, 8))] * 3, 0.3, mask(1, 5)),
    "a rotation without heads": lambda k: k.rope(mx.ones((2, 5, 8)), mx.ones((4,))),
}


@built
@pytest.mark.parametrize("name", UNFIT)
def test_what_does_not_fit_is_for_mlx_to_answer(name: str) -> None:
    """It may be broadcast, or an error; here it would be read from memory of others."""
    found, wanted = (outcome(lambda table=table: UNFIT[name](table)) for table in (operations, kernels))
    assert (found is None) == (wanted is None)
    if wanted is not None:
        np.testing.assert_allclose(found, wanted, atol=1e-6)


@built
def test_no_layers_at_all() -> None:
    assert operations.linears(array(3, 8), []) == []


@built
@pytest.mark.parametrize("shape", [(2, 1, 3, 8), (3, 1, 1, 7), (5, 1, 17, 80), (1, 4, 1, 16), (4, 3, 2)])
@pytest.mark.parametrize("act", ["silu", "relu"])
def test_a_gate_that_is_part_of_a_larger_array(shape: tuple[int, ...], act: str) -> None:
    """An axis of length one has a stride that says nothing."""
    wide = array(*shape[:-2], shape[-2] + 2, shape[-1])
    gate, up = wide[..., : shape[-2], :], wide[..., 2:, :]
    close(operations.gated(gate, up, act), kernels.gated(gate, up, act))


@built
def test_attention_over_rows_that_lie_backwards_or_on_each_other() -> None:
    q, k, v = (array(2, 2, 9, 8) for _ in range(3))
    once = mx.broadcast_to(array(2, 2, 1, 8), (2, 2, 9, 8))
    for sides in ((q[:, :, ::-1], k, v), (q, k[:, :, ::-1], v[:, :, ::-1]), (q, once, v), (q, k, once)):
        close(operations.attention(*sides, 0.3, None), kernels.attention(*sides, 0.3, None))


@built
@pytest.mark.parametrize("eps", [1e-6, 1e-2])
def test_norms_of_small_rows(eps: float) -> None:
    """Where epsilon is no detail."""
    x, weight = array(5, 16) * 1e-2, array(16)
    close(operations.rms_norm(x, weight, eps), kernels.rms_norm(x, weight, eps))
    close(operations.layer_norm(x, weight, None, eps), kernels.layer_norm(x, weight, None, eps))


@built
def test_what_is_no_number_stays_none() -> None:
    bad = mx.array([[float("nan"), 1.0, 2.0, 3.0]])
    weight = mx.eye(4)
    for found in (
        operations.linear(bad, weight, None, "gelu"),
        operations.layer_norm(bad, None, None, 1e-5),
        operations.activation(bad, "silu")[:, :1],
        operations.gated(bad, bad, "gelu_tanh")[:, :1],
        operations.attention(bad[None, None], bad[None, None], bad[None, None], 1.0, None)[..., :1],
    ):
        assert np.isnan(np.array(found)).any()


@built
def test_two_threads_at_once() -> None:
    x, weight = array(300, 64), array(96, 64)
    wanted = np.array(operations.linear(x, weight, None, "gelu"))
    failures: list[object] = []

    def work() -> None:
        try:
            for _ in range(50):
                np.testing.assert_allclose(np.array(operations.linear(x, weight, None, "gelu")), wanted, atol=1e-6)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_build_for_another_mlx_is_not_imported(monkeypatch, tmp_path) -> None:
    (tmp_path / "build.json").write_text(json.dumps({"mlx": "0.1.0", "reason": None}))
    monkeypatch.setattr(plugin.resources, "files", lambda package: tmp_path)
    plugin.load.cache_clear()
    try:
        assert "built for MLX 0.1.0" in (plugin.reason() or "")
        assert "built for MLX 0.1.0" in str(plugin.kernels("cpu"))
        (tmp_path / "build.json").write_text(json.dumps({"mlx": None, "reason": "RuntimeError: no compiler"}))
        plugin.load.cache_clear()
        assert "no compiler" in (plugin.reason() or "")
        (tmp_path / "build.json").unlink()
        plugin.load.cache_clear()
        assert "not built" in (plugin.reason() or "")
    finally:
        plugin.load.cache_clear()


@built
@pytest.mark.parametrize("m", [1, 7, 30, 200])
def test_a_repeated_product_gives_the_same_numbers(m: int) -> None:
    """Packing a weight on a later use would round differently from then on."""
    x, weight, bias = array(m, 64), array(96, 64), array(96)
    first = np.array(operations.linear(x, weight, bias, "gelu"))
    for _ in range(3):
        np.testing.assert_array_equal(np.array(operations.linear(x, weight, bias, "gelu")), first)
