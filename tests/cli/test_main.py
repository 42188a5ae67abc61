"""The command as a process: exit statuses, what is imported, pipes that close; and the parser's own answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from theodolite import registry
from theodolite.hookspecs import hookimpl
from theodolite_cli import embed, main

Checkpoint = Callable[..., str]
Capture = pytest.CaptureFixture[str]
RUN = "import sys; from theodolite_cli.__main__ import main; sys.exit(main())"
HEAVY = ("rich", "PIL", "aiohttp", "huggingface_hub", "torch", "transformers")
BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 0,
    "num_attention_heads": 1,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}


@pytest.fixture
def bert(checkpoint: Checkpoint) -> str:
    """A BERT without layers: what a process of its own, which knows no toy family, can load."""
    import mlx.core as mx

    folder = checkpoint("bert", config=BERT)
    rows = {"word": 12, "position": 16, "token_type": 2}
    tensors = {
        f"embeddings.{name}_embeddings.weight": mx.random.normal((n, 8), key=mx.random.key(n))
        for name, n in rows.items()
    }
    norm = {"embeddings.LayerNorm.weight": mx.ones(8), "embeddings.LayerNorm.bias": mx.zeros(8)}
    mx.save_safetensors(f"{folder}/model.safetensors", {**tensors, **norm})
    return folder


def process(*args: str, code: str = RUN, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, **kwargs)


def test_a_piped_embed_imports_nothing_heavy(bert: str) -> None:
    code = RUN.replace("sys.exit(main())", f"main(); print([m for m in {HEAVY} if m in sys.modules])")
    done = process("embed", "-m", bert, "-p", "a cat", "-p", "car", code=code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_stdout_is_only_the_answer(bert: str) -> None:
    done = process("embed", "-m", bert, "-p", "größe", "--max-length", "2", "--json", env={**os.environ, "LC_ALL": "C"})
    assert json.loads(done.stdout)["inputs"] == ["größe"]
    assert "cut" in done.stderr


def test_latin1_stdout_gets_ascii(bert: str) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    assert json.loads(process("embed", "-m", bert, "-p", "größe", "--json", env=env).stdout)["inputs"] == ["größe"]


def test_closed_pipe(bert: str) -> None:
    call = [sys.executable, "-c", RUN, "embed", "-m", bert, *["-p", "cat"] * 900]
    child = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert child.stdout
    assert child.stderr
    child.stdout.readline()
    child.stdout.close()
    assert child.wait(30) == main.BROKEN_PIPE
    assert child.stderr.read() == ""


def test_interrupt() -> None:
    code = RUN.replace("sys.exit", "print('started', flush=True); sys.exit")
    call = [sys.executable, "-c", code, "embed"]
    with subprocess.Popen(
        call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin
        assert child.stdout
        assert child.stderr
        child.stdout.readline()
        time.sleep(0.3)  # it waits for texts
        child.send_signal(signal.SIGINT)
        assert child.wait(10) == main.INTERRUPTED
        assert child.stderr.read() == ""


def test_interrupt_while_python_imports() -> None:
    """Ctrl-C in the first moments is as quiet as later."""
    code = """if True:
        import os, signal, sys
        class Interrupting:
            def find_spec(self, name, *rest):
                if name == "theodolite_cli.main":
                    os.kill(os.getpid(), signal.SIGINT)
        sys.meta_path.insert(0, Interrupting())
        """
    done = process("--version", code=code + RUN)
    assert (done.returncode, done.stdout, done.stderr) == (main.INTERRUPTED, "", "")


def test_closed_stdin() -> None:
    done = process("embed", stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: nothing to embed")


@pytest.mark.parametrize(("closed", "status"), [("<&-", 1), (">&-", 1), ("2>&-", 0)])
def test_closed_streams(bert: str, closed: str, status: int) -> None:
    texts = "" if "<" in closed else "-p cat -p car"
    line = f"exec '{sys.executable}' -c '{RUN}' embed -m '{bert}' {texts} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert ("could not be written to stdout" in done.stderr) == (closed == ">&-")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("args", [["--help"], ["--version"], ["embed", "--help"], ["arch"]])
def test_a_full_disk(args: list[str], unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        call = [sys.executable, "-c", RUN, *args]
        env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(call, stdout=full, stderr=subprocess.PIPE, text=True, env=env)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("No space left on device\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("debug", ["", "0", "1"])
def test_debug(capsys: Capture, monkeypatch: pytest.MonkeyPatch, debug: str) -> None:
    monkeypatch.setenv("THEODOLITE_DEBUG", debug)
    assert main.main(["embed", "-m", "/no/such", "-p", "cat"]) == 1
    err = capsys.readouterr().err
    assert ("Traceback" in err) == (debug == "1")
    assert err.splitlines()[-1].startswith("error: /no/such: no such folder")


def test_a_fault_of_ours_is_one_line(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: object) -> None:
        raise TypeError("two\nlines")

    monkeypatch.setattr(embed, "run", run)
    assert main.main(["embed"]) == 1
    assert capsys.readouterr().err == (
        "error: this is a fault of theodolite's: TypeError: two lines (THEODOLITE_DEBUG=1 shows where)\n"
    )


def test_version(capsys: Capture) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"theodolite {metadata.version('theodolite-cli')}\n"


@pytest.mark.parametrize("command", ["", *main.BUILTIN])
def test_help_fits_80_columns(capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stop:
        main.main([*([command] if command else []), "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert not [line for line in out.splitlines() if len(line) > 80]


@pytest.mark.parametrize(
    ("args", "help_of"),
    [
        ([], "theodolite"),
        (["nothing"], "theodolite"),
        (["--bogus", "embed"], "theodolite"),
        (["embed", "surplus"], "theodolite embed"),
        (["embed", "--bogus", "\x1b[31m"], "theodolite embed"),
        (["embed", "-p", "-x"], "theodolite embed"),
    ],
)
def test_usage(capsys: Capture, args: list[str], help_of: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main.main(args)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.endswith(f" (see {help_of} --help)\n")
    assert err.count("\n") == 1
    assert "\x1b" not in err


class Extra:
    """What a plugin of the group theodolite.commands looks like."""

    @hookimpl
    def commands(self, subparsers: Any) -> None:
        parser = subparsers.add_parser("greet", help="say hello")
        parser.add_argument("name")
        parser.set_defaults(run=lambda args: print(f"hello {args.name}") or 3)


def plugins(monkeypatch: pytest.MonkeyPatch, *found: registry.Plugin) -> None:
    monkeypatch.setattr(registry, "discover", lambda group: found if group == "theodolite.commands" else ())


def test_plugin_commands(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, registry.Plugin("extra", "extra", "1", Extra()))
    assert main.main(["greet", "you"]) == 3
    assert capsys.readouterr().out == "hello you\n"


@pytest.mark.parametrize("args", [["serve"], ["serve", "-m", "x", "--port", "1", "--help"]])
def test_missing_server(capsys: Capture, monkeypatch: pytest.MonkeyPatch, args: list[str]) -> None:
    plugins(monkeypatch)
    assert main.main(args) == 1
    assert capsys.readouterr().err == "error: the HTTP server is not installed: pip install theodolite-server\n"


def test_broken_server_says_why(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins(monkeypatch, registry.Plugin("server", "theodolite-server", "1", error="ImportError: no aiohttp"))
    assert main.main(["serve"]) == 1
    assert "server (theodolite-server 1) did not load: ImportError: no aiohttp" in capsys.readouterr().err
