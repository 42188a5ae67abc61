"""`FamilyTests`: the properties that every family has to hold, each as one test."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from theodolite import hookspecs, registry, tokenize
from theodolite.checkpoint import Checkpoint
from theodolite.embedder import Embedder
from theodolite.engine import Engine, Options
from theodolite.errors import TheodoliteError
from theodolite.reranker import Reranker
from theodolite.testing import tiny
from theodolite.values import ImageItem, Item, Pair, Row, Task, TextItem

GROUP_SIZE, BITS = 32, 4
LONG = "the cat sat on a mat while rain falls over the hills; " * 6


class FamilyTests:
    """Subclass it, set ``plugin``, ``name`` and ``golden``; mark a test you cannot pass ``xfail(reason=...)``."""

    plugin: Any
    """The module or object with the family's hook implementations."""
    name: str
    """The name of its entry point."""
    golden: Path
    """A recipe (`theodolite.testing.tiny`), with the reference's ``answers`` where there are any."""
    texts: Sequence[str] = tiny.TEXTS
    images: Sequence[tuple[int, int]] = ()
    """Sizes of pictures to try, for families that take images."""
    zoo_claims: frozenset[str] = frozenset()
    """Families of the zoo that this one claims too (a family that replaces another on purpose)."""
    tolerance = 2e-5
    """Most that a vector's component may differ from the reference's."""

    # ---------------------------------------------------------------- fixtures

    @pytest.fixture(scope="class")
    @classmethod
    def recipe(cls) -> dict[str, Any]:
        return tiny.read(cls.golden)

    @pytest.fixture(scope="class")
    @classmethod
    def folder(cls, recipe: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tiny.write(tmp_path_factory.mktemp(cls.name), recipe)

    @pytest.fixture(scope="class")
    @classmethod
    def plugins(cls) -> registry.Registry:
        return registry.Registry([registry.Plugin(cls.name, "under test", "0", cls.plugin)])

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, folder: Path, plugins: registry.Registry) -> Engine:
        return load(folder, plugins)

    # ---------------------------------------------------------------- the plugin

    def test_hooks_are_known(self, plugins: registry.Registry) -> None:
        assert not plugins.broken, str(plugins.broken[0].error)
        found = {name: options(self.plugin, name) for name in dir(self.plugin)}
        implemented = {given.get("specname") or name for name, given in found.items() if given is not None}
        missing = {"build", "forward"} - implemented
        assert not missing, f"there is no {' and no '.join(sorted(missing))} under @hookimpl"

    def test_claims_its_own_checkpoint(self, folder: Path, plugins: registry.Registry) -> None:
        assert plugins.elect(Checkpoint(folder), task_of(self, folder)).profile.family == self.name

    def test_claims_nothing_of_others(self, tmp_path: Path, plugins: registry.Registry) -> None:
        for entry in tiny.zoo():
            if entry["family"] in {self.name, *self.zoo_claims}:
                continue
            folder = tiny.write_files(tmp_path / entry["name"], entry["files"])
            for task in (None, Task(entry["task"])):
                with pytest.raises(TheodoliteError):
                    pytest.fail(f"{entry['name']}: {plugins.elect(Checkpoint(folder), task).profile}")

    # ---------------------------------------------------------------- loading

    def test_sanitized_names_are_the_parameters(self, folder: Path, engine: Engine) -> None:
        from mlx.utils import tree_flatten

        checkpoint = Checkpoint(folder)
        sanitized = engine.family.sanitize(checkpoint, checkpoint.weights())
        assert set(sanitized) == {name for name, _ in tree_flatten(engine.family.build(checkpoint).parameters())}
        again = engine.family.sanitize(checkpoint, dict(sanitized))
        assert set(again) == set(sanitized)

    def test_float32_stays_float32(self, engine: Engine) -> None:
        import mlx.core as mx
        from mlx.utils import tree_flatten

        assert {tensor.dtype for _, tensor in tree_flatten(engine.model.parameters())} == {mx.float32}

    def test_quantized_weights_give_what_they_unpack_to(
        self, folder: Path, plugins: registry.Registry, engine: Engine, tmp_path: Path
    ) -> None:
        packed, unpacked = quantize(folder, engine, tmp_path)
        items = self.items(engine)
        found, wanted = (run(load(path, plugins), items) for path in (packed, unpacked))
        assert max(np.abs(a - b).max() for a, b in zip(found, wanted, strict=True)) < 1e-4
        plain = run(engine, items)
        assert max(np.abs(a - b).max() for a, b in zip(plain, wanted, strict=True)) > 1e-6, "nothing was quantized"

    # ---------------------------------------------------------------- the stages

    def test_prompt_is_pure(self, engine: Engine) -> None:
        for item in self.items(engine):
            assert same_rows(engine.encode([item]), engine.encode([item]))

    def test_truncation_keeps_what_the_template_appends(self, engine: Engine, folder: Path) -> None:
        long = "the cat sat on a mat " * (engine.max_length // 4 + 10)
        item = Pair(TextItem("rain"), TextItem(long)) if engine.profile.task is Task.RERANK else TextItem(long)
        [row] = engine.encode([item])
        assert len(row.input_ids) <= engine.max_length
        assert row.truncated > 0
        trailing = engine.tokenizer.trailing
        [short] = engine.encode([self.items(engine)[0]])
        if trailing and short.input_ids[-len(trailing) :] == trailing:
            assert row.input_ids[-len(trailing) :] == trailing

    def test_forward_answers_for_every_token(self, engine: Engine) -> None:
        rows = [row for row in engine.encode(self.items(engine)) if row.image is None]
        batch = tokenize.batch(rows, engine.profile, engine.tokenizer.pad_id)
        hidden = engine.family.forward(engine.model, batch)
        wanted = batch.input_ids.shape
        said = f"forward returned {list(hidden.shape)}, expected [{', '.join(map(str, wanted))}, D]"
        assert hidden.shape[:-1] == wanted, said

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_ids_under_the_mask_do_not_matter(self, engine: Engine, side: Literal["right", "left"]) -> None:
        """Bit for bit, with the batch's shape held fixed."""
        if not engine.profile.masked:
            pytest.skip("attends to padding by training")
        import mlx.core as mx

        rows = [row for row in engine.encode(self.items(engine)) if row.image is None]
        profile = dataclasses.replace(engine.profile, padding=side)
        batch = tokenize.batch(rows, profile, engine.tokenizer.pad_id)
        ids, mask = np.array(batch.input_ids), np.array(batch.attention_mask)
        assert (mask == 0).any(), "the texts should differ in length"
        other = np.where(mask == 1, ids, (ids + 7 + np.arange(ids.shape[1])) % engine.profile.vocab_size)
        changed = dataclasses.replace(batch, input_ids=mx.array(other.astype(np.int32)))
        first, second = (pooled(engine, one) for one in (batch, changed))
        if engine.profile.multi_vector:
            assert (first[mask == 0] == 0).all(), "padding rows should be zero"
        assert (first == second).all()

    @pytest.mark.parametrize("side", ["right", "left"])
    def test_padding_far_from_any_token_is_finite(self, engine: Engine, side: Literal["right", "left"]) -> None:
        """A window or a convolution meets padding that sees no real token; its NaN would reach real rows."""
        import mlx.core as mx

        rows = engine.encode(self.long_and_short(engine))
        profile = dataclasses.replace(engine.profile, padding=side)
        batch = tokenize.batch(rows, profile, engine.tokenizer.pad_id)
        hidden = engine.family.forward(engine.model, batch)
        assert hidden.dtype == mx.float32
        assert np.isfinite(np.array(hidden)).all()
        assert np.isfinite(pooled(engine, batch)).all()

    def test_a_short_row_beside_a_long_one_equals_itself_alone(self, engine: Engine) -> None:
        items = self.long_and_short(engine)
        together = run(engine, items)
        for item, answer in zip(items, together, strict=True):
            [alone] = run(engine, [item])
            np.testing.assert_allclose(answer, alone, atol=1e-5 * max(1.0, float(np.abs(alone).max())))

    def test_a_row_in_a_batch_equals_itself_alone(self, engine: Engine) -> None:
        items = self.items(engine)
        together = run(engine, items)
        for item, vector in zip(items, together, strict=True):
            [alone] = run(engine, [item])
            np.testing.assert_allclose(vector, alone, atol=1e-5 * max(1.0, float(np.abs(alone).max())))

    def test_nothing_of_a_request_stays_for_the_next(self, engine: Engine) -> None:
        items = self.items(engine)
        order = [0, 2, *range(len(items) - 1, -1, -1), 0, 2]
        first: dict[int, np.ndarray] = {}
        for i in order:
            [answer] = run(engine, [items[i]])
            np.testing.assert_allclose(answer, first.setdefault(i, answer), atol=1e-6)

    def test_answers_are_finite_and_of_the_profiles_shape(self, engine: Engine) -> None:
        for item, answer in zip(self.items(engine), run(engine, self.items(engine)), strict=True):
            [row] = engine.encode([item])
            if engine.profile.task is Task.RERANK:
                assert answer.shape == ()
            elif engine.profile.multi_vector:
                assert answer.shape == (len(row.input_ids), engine.profile.dim)
            else:
                assert answer.shape == (engine.profile.dim,)
            assert np.isfinite(answer).all()

    def test_runs_off_the_main_thread(self, folder: Path, plugins: registry.Registry, engine: Engine) -> None:
        """Loaded and first run on another thread, and loaded here but first run there."""
        items = self.items(engine)
        wanted = run(engine, items)
        fresh = load(folder, plugins)
        for job in (lambda: run(load(folder, plugins), items), lambda: run(fresh, items)):
            for found, expected in zip(on_a_thread(job), wanted, strict=True):
                np.testing.assert_allclose(found, expected, atol=1e-6)

    def test_answers_are_the_references(self, recipe: dict[str, Any], engine: Engine) -> None:
        answers = recipe.get("answers")
        if not answers:
            pytest.skip("the golden file has no answers")
        for answer in answers:
            if isinstance(engine, Reranker):
                made = engine.rank(
                    answer["query"], [answer["document"]], instruction=answer.get("instruction"), raw_scores=True
                )
                np.testing.assert_allclose(made.scores, [answer["logit"]], atol=1e-4)
                assert made.prompt_tokens == answer["tokens"]
            else:
                assert isinstance(engine, Embedder)
                found = engine.embed([answer["text"]], instruction=answer.get("instruction"))
                np.testing.assert_allclose(found.vectors[0], answer["vector"], atol=self.tolerance)
                assert found.prompt_tokens == answer["tokens"]

    # ---------------------------------------------------------------- what is run

    def items(self, engine: Engine) -> list[Item]:
        """The texts (each with the first as its query, for rerankers) and the pictures."""
        texts = [TextItem(text) for text in self.texts]
        sides: list[TextItem | ImageItem] = [*texts, *(ImageItem(picture(*size)) for size in self.images)]
        if engine.profile.task is Task.RERANK:
            return [Pair(texts[0], side) for side in sides]
        return list(sides)

    def long_and_short(self, engine: Engine) -> list[Item]:
        """A text that is many times longer than the others, beside the shortest two."""
        texts = [TextItem(text) for text in (LONG, *sorted(self.texts, key=len)[:2])]
        return [Pair(texts[-1], text) for text in texts] if engine.profile.task is Task.RERANK else list(texts)


# ---------------------------------------------------------------- helpers


def load(folder: Path, plugins: registry.Registry) -> Engine:
    """The checkpoint as an `Embedder`, or as a `Reranker` where that is what the family makes of it."""
    checkpoint = Checkpoint(folder)
    try:
        plugins.elect(checkpoint, Task.EMBED)
    except TheodoliteError:
        return Reranker(checkpoint, Task.RERANK, Options(), plugins)
    return Embedder(checkpoint, Task.EMBED, Options(), plugins)


def task_of(case: FamilyTests, folder: Path) -> Task:
    """What the family says the checkpoint is for."""
    plugins = registry.Registry([registry.Plugin(case.name, "under test", "0", case.plugin)])
    try:
        return plugins.elect(Checkpoint(folder), Task.EMBED).profile.task
    except TheodoliteError:
        return Task.RERANK


def run(engine: Engine, items: Sequence[Item]) -> list[np.ndarray]:
    return engine.run(engine.encode(items), batch_size=len(items))


def pooled(engine: Engine, batch: Any) -> np.ndarray:
    import mlx.core as mx

    hidden = engine.family.forward(engine.model, batch).astype(mx.float32)
    return np.array(engine.family.pool(engine.model, hidden, batch, engine.pooling))


def on_a_thread(job: Any) -> list[np.ndarray]:
    box: list[Any] = []

    def guarded() -> None:
        try:
            box.append(job())
        except Exception as error:  # handed to the test's own thread
            box.append(error)

    thread = threading.Thread(target=guarded)
    thread.start()
    thread.join()
    if isinstance(box[0], Exception):
        raise box[0]
    answers: list[np.ndarray] = box[0]
    return answers


def options(plugin: Any, name: str) -> dict[str, Any] | None:
    """The hook options of one attribute, None where it is no implementation."""
    found = getattr(getattr(plugin, name, None), f"{hookspecs.PROJECT}_impl", None)
    return found if isinstance(found, dict) else None


def same_rows(first: list[Row], second: list[Row]) -> bool:
    return [row.input_ids for row in first] == [row.input_ids for row in second]


def picture(width: int, height: int) -> Any:
    """A smooth drawing, the same on every machine."""
    from PIL import Image

    y, x = np.mgrid[0:height, 0:width]
    waves = [127 + 100 * np.sin(0.05 * (i + 1) * x + 0.07 * (3 - i) * y) for i in range(3)]
    return Image.fromarray(np.round(np.stack(waves, axis=-1)).astype(np.uint8))


def quantize(folder: Path, engine: Engine, out: Path) -> tuple[Path, Path]:
    """Two copies of a checkpoint: its layers packed as mlx-community packs them, and the numbers they unpack to."""
    import shutil

    import mlx.core as mx

    checkpoint = Checkpoint(folder)
    stored = checkpoint.weights()
    sanitized = {id(tensor): name for name, tensor in engine.family.sanitize(checkpoint, dict(stored)).items()}
    modules = dict(engine.family.build(checkpoint).named_modules())

    packed: dict[str, mx.array] = {}
    unpacked: dict[str, mx.array] = {}
    for name, tensor in stored.items():
        path = sanitized.get(id(tensor), "").removesuffix(".weight")
        if path in modules and hasattr(modules[path], "to_quantized") and tensor.shape[-1] % GROUP_SIZE == 0:
            weight, scales, biases = mx.quantize(tensor, group_size=GROUP_SIZE, bits=BITS)
            stem = name.removesuffix(".weight")
            packed |= {name: weight, f"{stem}.scales": scales, f"{stem}.biases": biases}
            unpacked[name] = mx.dequantize(weight, scales, biases, group_size=GROUP_SIZE, bits=BITS)
        else:
            packed[name] = unpacked[name] = tensor
    for kind, tensors in (("packed", packed), ("unpacked", unpacked)):
        shutil.copytree(folder, out / kind)
        mx.save_safetensors(str(out / kind / "model.safetensors"), tensors)
    config = json.loads((folder / "config.json").read_text())
    block = {"quantization": {"group_size": GROUP_SIZE, "bits": BITS}}
    (out / "packed" / "config.json").write_text(json.dumps({**config, **block}))
    return out / "packed", out / "unpacked"
