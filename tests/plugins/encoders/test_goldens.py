"""ModernBERT, SigLIP and cross-encoders against transformers, by make_encoders.py; and what they refuse."""

from __future__ import annotations

import json

import mlx.core as mx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import theodolite
from theodolite.errors import CheckpointError, InvalidResult, RequestError, Unsupported
from theodolite.values import ImageItem

TOLERANCE = 2e-5
RERANKERS = ["rerank_bert", "rerank_xlmr", "rerank_modernbert_cls", "rerank_modernbert_mean"]


@pytest.mark.parametrize("name", ["modernbert", "siglip"])
@pytest.mark.parametrize("batch_size", [1, 16])
def test_texts(name, batch_size, golden, checkpoint, tiny):
    model, answers = theodolite.load(checkpoint(golden(name))), golden(name)["answers"]["embed"]
    made = model.embed([tiny.text(*answer["text"]) for answer in answers], batch_size=batch_size)
    np.testing.assert_allclose(made.vectors, [answer["answer"] for answer in answers], atol=TOLERANCE)


def test_images_and_texts_in_one_call(golden, checkpoint, tiny):
    model, answers = theodolite.load(checkpoint(golden("siglip"))), golden("siglip")["answers"]
    text, sights = answers["embed"][0], answers["images"]
    made = model.embed([*(tiny.picture(*sight["image"]) for sight in sights), tiny.text(*text["text"])])
    wanted = [*(sight["answer"] for sight in sights), text["answer"]]
    np.testing.assert_allclose(made.vectors, wanted, atol=TOLERANCE)
    assert made.prompt_tokens == text["text"][1] + 1  # an image counts nothing


def test_grey_of_16_bits_is_the_same_picture(golden, checkpoint, tiny):
    from PIL import Image

    model = theodolite.load(checkpoint(golden("siglip")))
    grey = tiny.picture(40, 30).convert("L")
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    np.testing.assert_allclose(*model.embed([grey, deep]).vectors, atol=1e-6)


@pytest.mark.parametrize("name", RERANKERS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_scores(name, batch_size, golden, checkpoint, tiny):
    model, answers = theodolite.load_reranker(checkpoint(golden(name))), golden(name)["answers"]
    query, documents = tiny.text(*answers["query"]), [tiny.text(*d["text"]) for d in answers["documents"]]
    wanted = np.array([d["logit"] for d in answers["documents"]])
    raw = model.rank(query, documents, raw_scores=True, batch_size=batch_size)
    np.testing.assert_allclose(raw.scores, wanted, atol=5e-5)
    assert raw.kind == "sequence_classifier"
    np.testing.assert_allclose(model.rank(query, documents).scores, 1 / (1 + np.exp(-wanted)), atol=1e-5)


@pytest.mark.parametrize("name", RERANKERS)
def test_a_mixed_batch_scores_as_one_by_one(name, golden, checkpoint, tiny):
    model = theodolite.load_reranker(checkpoint(golden(name)))
    lengths = np.random.default_rng(5).integers(5, 301, 64)
    documents = [tiny.text(100 + i, length) for i, length in enumerate(lengths)]
    together = model.rank("w1 w2 w3", documents).scores
    alone = [model.rank("w1 w2 w3", [document]).scores[0] for document in documents]
    np.testing.assert_allclose(together, alone, atol=1e-5)


def test_little_of_a_batch_is_padding(golden, checkpoint, tiny):
    model = theodolite.load_reranker(checkpoint(golden("rerank_bert")))
    for seed in range(5):
        lengths = np.random.default_rng(seed).integers(5, 301, 64)
        pairs = model.pairs("w1 w2 w3", [tiny.text(i, length) for i, length in enumerate(lengths)])
        rows = model.encode(pairs)
        batches = [[len(rows[i].input_ids) for i in batch] for batch in model.batches(rows, 8)]
        real, padded = sum(map(sum, batches)), sum(max(batch) * len(batch) for batch in batches)
        assert real / padded >= 0.85


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("name", ["rerank_bert", "rerank_xlmr", "rerank_modernbert_cls"])
def test_more_labels_than_one_are_refused_by_the_tensor(name, labels, golden, checkpoint):
    changed = golden(name)
    for tensor in ("classifier.weight", "classifier.bias", "classifier.out_proj.weight", "classifier.out_proj.bias"):
        if tensor in changed["shapes"]:
            changed["shapes"][tensor][0] = labels
    message = f"must expose exactly one output label, this checkpoint has {labels}"
    with pytest.raises(Unsupported, match=message):
        theodolite.load_reranker(checkpoint(changed))


def test_a_claim_of_two_labels_is_not_believed(golden, checkpoint):
    changed = golden("rerank_bert")
    changed["files"]["config.json"]["id2label"] = {"0": "NO", "1": "YES"}
    assert theodolite.load_reranker(checkpoint(changed)).kind == "sequence_classifier"


@pytest.mark.parametrize("name", ["rerank_bert", "rerank_xlmr", "rerank_modernbert_cls", "siglip"])
def test_heads_that_do_not_share_the_width(name, golden, checkpoint):
    changed = golden(name)
    config = changed["files"]["config.json"]
    config.get("text_config", config)["num_attention_heads"] = 3
    with pytest.raises(CheckpointError, match=r"hidden_size \d+ is no multiple of (num_attention_heads )?3"):
        (theodolite.load if name == "siglip" else theodolite.load_reranker)(checkpoint(changed))


def test_a_segment_outside_the_table(golden, checkpoint):
    changed = golden("rerank_bert")
    changed["files"]["config.json"]["type_vocab_size"] = 1
    changed["shapes"]["bert.embeddings.token_type_embeddings.weight"][0] = 1
    with pytest.raises(CheckpointError, match="segment 1, the segment table has 1 rows"):
        theodolite.load_reranker(checkpoint(changed))


def test_a_pooling_that_is_not_served(golden, checkpoint):
    changed = golden("rerank_modernbert_cls")
    changed["files"]["config.json"]["classifier_pooling"] = "max"
    with pytest.raises(Unsupported, match="classifier_pooling 'max'"):
        theodolite.load_reranker(checkpoint(changed))


def test_a_score_that_is_no_number(golden, checkpoint, tiny):
    folder = checkpoint(golden("rerank_bert"))
    weights = load_file(folder / "model.safetensors")
    table = weights["bert.embeddings.word_embeddings.weight"]
    table[tiny.tokenizer("bert").token_to_id("w49")] = np.nan
    save_file(weights, folder / "model.safetensors")
    model = theodolite.load_reranker(folder)
    with pytest.raises(InvalidResult):
        model.rank("w1", ["w2", "w49"])
    assert np.isfinite(model.rank("w1", ["w2"]).scores).all()


def test_pairs_are_texts(golden, checkpoint, tiny):
    model = theodolite.load_reranker(checkpoint(golden("rerank_bert")))
    with pytest.raises(RequestError, match="is an image"):
        model.rank("w1", [tiny.picture(8, 8)])
    with pytest.raises(RequestError, match="instruction"):
        model.rank("w1", ["w2"], instruction="be strict")


def test_a_missing_norm_is_named(golden, checkpoint):
    changed = golden("modernbert")
    del changed["shapes"]["layers.2.attn_norm.weight"]
    with pytest.raises(CheckpointError, match=r"layers\.2\.attn_norm\.weight is missing"):
        theodolite.load(checkpoint(changed))


def test_layer_types_and_ropes_of_transformers_5(golden, checkpoint, tiny):
    changed, answer = golden("modernbert"), golden("modernbert")["answers"]["embed"][-1]
    config = changed["files"]["config.json"]
    full, sliding = config.pop("global_rope_theta"), config.pop("local_rope_theta")
    config.pop("global_attn_every_n_layers")
    config["layer_types"] = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    config["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": full},
        "sliding_attention": {"rope_type": "default", "rope_theta": sliding},
    }
    made = theodolite.load(checkpoint(changed)).embed([tiny.text(*answer["text"])])
    np.testing.assert_allclose(made.vectors[0], answer["answer"], atol=TOLERANCE)
    config["layer_types"].pop()
    with pytest.raises(CheckpointError, match="layer_types names 3 layers, num_hidden_layers is 4"):
        theodolite.load(checkpoint(changed))


def test_fused_tensors_quantized_whole_with_bits_of_their_own(golden, checkpoint, tiny):
    folder = checkpoint(golden("modernbert"))
    weights = load_file(folder / "model.safetensors")
    packed, plain = {}, {}
    for i, (name, tensor) in enumerate(weights.items()):
        if tensor.ndim < 2 or tensor.shape[-1] % 32:
            packed[f"model.{name}"] = plain[name] = mx.array(tensor)
            continue
        bits, stem = (4, 8)[i % 2], name.removesuffix(".weight")
        parts = mx.quantize(mx.array(tensor), group_size=32, bits=bits)
        packed |= dict(zip((f"model.{stem}.{part}" for part in ("weight", "scales", "biases")), parts, strict=True))
        plain[name] = mx.dequantize(*parts, group_size=32, bits=bits)
    texts = [tiny.text(seed, 30) for seed in range(3)]
    answers = []
    for tensors in (packed, plain):
        mx.save_safetensors(str(folder / "model.safetensors"), tensors)
        config = golden("modernbert")["files"]["config.json"]
        if tensors is packed:
            config["quantization"] = {"group_size": 32, "bits": 4}
        (folder / "config.json").write_text(json.dumps(config))
        answers.append(theodolite.load(folder).embed(texts).vectors)
    np.testing.assert_allclose(*answers, atol=1e-5)


def test_why_a_checkpoint_takes_no_images(golden, checkpoint, tiny):
    without = golden("siglip")
    del without["files"]["preprocessor_config.json"]
    alone = golden("siglip")
    alone["files"]["config.json"]["architectures"] = ["SiglipTextModel"]
    alone["shapes"] = {name: shape for name, shape in alone["shapes"].items() if name.startswith("text_model.")}
    for changed, reason in ((without, "needs preprocessor_config.json"), (alone, "text tower alone")):
        model = theodolite.load(checkpoint(changed))
        answer = golden("siglip")["answers"]["embed"][1]
        np.testing.assert_allclose(model.embed([tiny.text(*answer["text"])]).vectors[0], answer["answer"], atol=1e-5)
        with pytest.raises(RequestError, match=reason):
            model.embed([tiny.picture(8, 8)])


def test_processors_that_do_not_fit_the_tower(golden, checkpoint):
    for key, value, message in (
        ("size", {"height": 64, "width": 64}, "the vision tower takes 30 x 30"),
        ("do_center_crop", True, "do_center_crop"),
        ("do_resize", False, "do_resize"),
    ):
        changed = golden("siglip")
        changed["files"]["preprocessor_config.json"][key] = value
        with pytest.raises(CheckpointError, match=message):
            theodolite.load(checkpoint(changed))


def test_an_image_with_a_text(golden, checkpoint, tiny):
    model = theodolite.load(checkpoint(golden("siglip")))
    with pytest.raises(RequestError, match="not both"):
        model.embed([ImageItem(tiny.picture(8, 8), "w1")])
    with pytest.raises(Unsupported, match="pools in its own way"):
        theodolite.load(checkpoint(golden("siglip")), pooling="mean")


def test_filters_as_mlx_exports_store_them(golden, checkpoint, tiny):
    folder, answer = checkpoint(golden("siglip")), golden("siglip")["answers"]["images"][1]
    weights = load_file(folder / "model.safetensors")
    name = "vision_model.embeddings.patch_embedding.weight"
    weights[name] = np.ascontiguousarray(weights[name].transpose(0, 2, 3, 1))
    save_file(weights, folder / "model.safetensors")
    made = theodolite.load(folder).embed([tiny.picture(*answer["image"])])
    np.testing.assert_allclose(made.vectors[0], answer["answer"], atol=TOLERANCE)
