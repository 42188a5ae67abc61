"""Theodolite beside its peers, interleaved on this machine: `python tests/bench/run.py --venvs FOLDER`.

Each engine runs in a process and a venv of its own (made under --venvs on first use; --python ENGINE=PATH uses one that
is there). Every round measures all engines one after the other, so that a busy machine is as busy for all of them.
Prints medians, and ratios with minimum, median and maximum over the rounds; --markdown writes the table to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BF16 = "theodolite-bfloat16"
ENGINES = ("theodolite", BF16, "sentence-transformers", "onnxruntime", "mlx-embeddings")
"""Measured unless --engines says otherwise; llama.cpp is not: its package is built from source, with a compiler."""
REQUIREMENTS = {
    "sentence-transformers": "requirements-torch.txt",
    "onnxruntime": "requirements-onnxruntime.txt",
    "llama.cpp": "requirements-llama-cpp.txt",
    "mlx-embeddings": "requirements-mlx-embeddings.txt",
}
EXPORTS = {
    "onnxruntime": ("sentence-transformers", "export_onnx.py", ".onnx", "BENCH_ONNX"),
    "llama.cpp": ("llama.cpp", "export_gguf.py", ".gguf", "BENCH_GGUF"),
}
"""Engines that need the checkpoint in a format of their own: whose venv writes it, by what, its suffix, where it is."""
SLOW = {"mlx-embeddings": 32}
"""Engines that are given fewer texts a round: on the plain wheel for a CPU more would take minutes."""
SHORT = "How is the weather in Paris today?"
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Set on some machines for the sake of old BLAS builds; they slow a current one."""


PAUSE = 0.1
"""Seconds between two engines: the threads of some spin for a while after a call, which is not the next one's time."""


class Engine:
    """A worker process."""

    def __init__(self, name: str, python: str, checkpoint: Path, environment: dict[str, str]) -> None:
        began = time.perf_counter()
        self.name = name
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), name, str(checkpoint)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True, env=environment,
        )  # fmt: skip
        self.load: float = self.read()["load"]
        self.cold = time.perf_counter() - began
        self.peak = 0.0

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            status = self.process.wait()
            self.errors.seek(0)
            raise SystemExit(f"{self.name} ended with status {status}:\n{self.errors.read()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def embed(self, texts: list[str], vectors: bool = False) -> dict[str, Any]:
        time.sleep(PAUSE)
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"texts": texts, "vectors": vectors}) + "\n")
        self.process.stdin.flush()
        answer = self.read()
        self.peak = answer["peak_mb"]
        return answer


def words() -> list[str]:
    """The words of the project's own documentation, each as often as it is there."""
    pages = " ".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md")))
    return [word for word in pages.split() if word.isascii() and word.isalpha()]


def texts(count: int) -> list[str]:
    """Sentences of 3 to 120 words."""
    rng, choice = np.random.default_rng(0), words()
    return [" ".join(rng.choice(choice, int(rng.integers(3, 121)))) for _ in range(count)]


def interpreter(engine: str, venvs: Path, given: dict[str, str]) -> str:
    """The engine's Python, its venv made on first use."""
    if engine in given:
        return given[engine]
    if engine in ("theodolite", BF16):
        return sys.executable
    home = venvs / engine
    python = home / "bin/python"
    if not python.exists():
        print(f"making a venv for {engine} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "-r", str(HERE / REQUIREMENTS[engine])], check=True)
    return str(python)


def multiplies_bf16(python: str) -> bool:
    """Whether the kernels that theodolite uses here multiply bfloat16."""
    script = "from theodolite.nn import kernels; print(kernels.choose().bf16)"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip() == "True"


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} / {statistics.median(values):.2f} / {max(values):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venvs", type=Path, default=ROOT / "build/bench")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PATH")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--checkpoint", type=Path, help="a folder (default: the default checkpoint's)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--markdown", type=Path)
    args = parser.parse_args()
    given = dict(pair.split("=", 1) for pair in args.python)
    engines = args.engines.split(",")
    if BF16 in engines and not multiplies_bf16(given.get("theodolite", sys.executable)):
        print("bfloat16: not available on this processor")
        engines.remove(BF16)
    pythons = {engine: interpreter(engine, args.venvs, given) for engine in engines}
    checkpoint = args.checkpoint or Path(
        subprocess.run(
            [pythons["theodolite"], "-c", "from theodolite import locate; print(locate.find(locate.DEFAULT))"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()
    )  # fmt: skip
    environment = {key: value for key, value in os.environ.items() if key not in UNSET}
    environment |= {"BENCH_THREADS": str(args.threads), "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1"}
    environment["TOKENIZERS_PARALLELISM"] = "true"
    for engine in engines:
        if engine in EXPORTS:
            writer, script, suffix, variable = EXPORTS[engine]
            exported = args.venvs / f"{checkpoint.name}{suffix}"
            if not exported.exists():
                exported.parent.mkdir(parents=True, exist_ok=True)
                python = interpreter(writer, args.venvs, given)
                subprocess.run([python, str(HERE / script), str(checkpoint), str(exported)], check=True)
            environment[variable] = str(exported)
    running = {name: Engine(name, pythons[name], checkpoint, environment) for name in engines}
    sentences = texts(args.texts)
    wanted = np.array(running["theodolite"].embed(sentences[:32], vectors=True)["vectors"])
    for name, engine in running.items():
        found = np.array(engine.embed(sentences[:32], vectors=True)["vectors"])
        print(f"{name}: smallest cosine with ours {float((found * wanted).sum(axis=1).min()):.6f}", file=sys.stderr)
    few = min(SLOW.values())
    seconds: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(args.rounds):
        for name, engine in running.items():
            seconds[name].append(engine.embed(sentences[: SLOW.get(name, args.texts)])["seconds"])
    if any(name in SLOW for name in running):
        small = [running["theodolite"].embed(sentences[:few])["seconds"] for _ in range(args.rounds)]
    shorts: dict[str, list[float]] = {name: [] for name in running}
    for _ in range(40):
        for name, engine in running.items():
            shorts[name].append(engine.embed([SHORT])["seconds"])
    lines = [
        "| engine | texts/s | ours / theirs (min / median / max) | short text p50, ms | load, s | cold start, s | MB |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, engine in running.items():
        ours = small if name in SLOW else seconds["theodolite"]
        ratios = [theirs / mine for theirs, mine in zip(seconds[name], ours, strict=True)]
        rate = SLOW.get(name, args.texts) / statistics.median(seconds[name])
        short = statistics.median(shorts[name]) * 1000
        lines.append(
            f"| {name} | {rate:.1f} | {spread(ratios)} | {short:.1f} | {engine.load:.2f} | {engine.cold:.1f} "
            f"| {engine.peak:.0f} |"
        )
    if BF16 in running and "onnxruntime" in running:
        pairs = zip(seconds["onnxruntime"], seconds[BF16], strict=True)
        lines += ["", f"bfloat16 / onnxruntime float32: {spread([theirs / ours for theirs, ours in pairs])}"]
    table = "\n".join(lines)
    print(table)
    if args.markdown:
        args.markdown.write_text(table + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
