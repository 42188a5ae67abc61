"""One engine in a process of its own: reads a command a line from stdin, answers a JSON line on stdout.

    python worker.py ENGINE CHECKPOINT

ENGINE: theodolite | theodolite-bfloat16 | sentence-transformers | onnxruntime | llama.cpp | mlx-embeddings

Every engine takes texts and gives normalized numpy vectors, tokenizing included, on the number of threads in
BENCH_THREADS. Imported by nothing of the project; each engine's own venv is enough.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

THREADS = int(os.environ.get("BENCH_THREADS", "2"))
BATCH_SIZE = 32
Embed = Callable[[list[str]], np.ndarray]


def theodolite(checkpoint: str, dtype: str = "auto") -> Embed:
    import theodolite

    embedder = theodolite.load(checkpoint, kernels=os.environ.get("BENCH_KERNELS") or None, dtype=dtype)
    return lambda texts: np.asarray(embedder.embed(texts).vectors)


def sentence_transformers(checkpoint: str) -> Embed:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(THREADS)
    model = SentenceTransformer(checkpoint, device="cpu", local_files_only=True, model_kwargs={"dtype": torch.float32})
    return lambda texts: model.encode(texts, normalize_embeddings=True, show_progress_bar=False, batch_size=BATCH_SIZE)


def onnxruntime(checkpoint: str) -> Embed:
    """The model exported by export_onnx.py, batches sorted by length, mean pooling in numpy."""
    import onnxruntime as ort
    import tokenizers

    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(os.environ["BENCH_ONNX"], options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(Path(checkpoint) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    names = {value.name for value in session.get_inputs()}

    def embed(texts: list[str]) -> np.ndarray:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        out: list[np.ndarray] = [np.empty(0)] * len(rows)
        for first in range(0, len(order), BATCH_SIZE):
            part = order[first : first + BATCH_SIZE]
            width = len(rows[part[0]])
            ids, mask = np.zeros((len(part), width), np.int64), np.zeros((len(part), width), np.int64)
            for i, row in enumerate(part):
                ids[i, : len(rows[row])], mask[i, : len(rows[row])] = rows[row], 1
            given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
            [hidden] = session.run(None, {name: value for name, value in given.items() if name in names})
            real = mask[..., None].astype(np.float32)
            mean = (hidden * real).sum(axis=1) / real.sum(axis=1)
            mean /= np.linalg.norm(mean, axis=1, keepdims=True)
            for row, vector in zip(part, mean, strict=True):
                out[row] = vector
        return np.stack(out)

    return embed


def llama_cpp(checkpoint: str) -> Embed:
    """The model written by export_gguf.py. Larger batches are slower: rows of one batch are masked, not kept apart."""
    from llama_cpp import LLAMA_POOLING_TYPE_MEAN, Llama

    model = Llama(
        os.environ["BENCH_GGUF"], embedding=True, n_ctx=256, n_batch=256, n_ubatch=256, n_threads=THREADS,
        n_threads_batch=THREADS, pooling_type=LLAMA_POOLING_TYPE_MEAN, verbose=False,
    )  # fmt: skip
    return lambda texts: np.array(model.embed(texts, normalize=True, truncate=True), np.float32)


def mlx_embeddings(checkpoint: str) -> Embed:
    import mlx.core as mx
    from mlx_embeddings import load

    model, tokenizer = load(checkpoint)
    inner = getattr(tokenizer, "_tokenizer", tokenizer)

    def embed(texts: list[str]) -> np.ndarray:
        parts = []
        for first in range(0, len(texts), BATCH_SIZE):
            given = inner(
                texts[first : first + BATCH_SIZE], return_tensors="np", padding=True, truncation=True, max_length=256
            )
            ids, mask = mx.array(given["input_ids"]), mx.array(given["attention_mask"])
            parts.append(np.array(model(ids, attention_mask=mask).text_embeds))
        return np.concatenate(parts)

    return embed


ENGINES = {
    "theodolite": theodolite,
    "theodolite-bfloat16": lambda checkpoint: theodolite(checkpoint, dtype="bfloat16"),
    "sentence-transformers": sentence_transformers,
    "onnxruntime": onnxruntime,
    "llama.cpp": llama_cpp,
    "mlx-embeddings": mlx_embeddings,
}


def main() -> None:
    name, checkpoint = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library that prints must not break the protocol
    began = time.perf_counter()
    embed = ENGINES[name](checkpoint)
    loaded = time.perf_counter() - began

    def say(**answer: object) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    embed(["warm"])
    say(load=loaded)
    for line in sys.stdin:
        command = json.loads(line)
        began = time.perf_counter()
        vectors = embed(command["texts"])
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        say(seconds=seconds, peak_mb=peak, vectors=vectors.tolist() if command.get("vectors") else None)


if __name__ == "__main__":
    main()
