"""Every flag, its variables, and who wins; and what the flags together refuse at the start."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest

from theodolite.errors import CheckpointError, RequestError, TheodoliteError
from theodolite.values import Task
from theodolite_server import config, models
from theodolite_server.config import FLAGS, Config, Flag

ALL = [flag for group in FLAGS.values() for flag in group]
VALUES: dict[str, tuple[str, Any, str, Any]] = {
    "model": ("a", "a", "b", "b"),
    "embedding_model": ("a", "a", "b", "b"),
    "reranker_model": ("a", "a", "b", "b"),
    "extra_model": ("a", ("a",), "b,c", ("b", "c")),
    "max_loaded_mib": ("5", 5, "6", 6),
    "alias": ("a", ("a",), "b, c", ("b", "c")),
    "revision": ("a", "a", "b", "b"),
    "models_dir": ("/a", Path("/a"), "/b", Path("/b")),
    "offline": ("", True, "1", True),
    "family": ("a", "a", "b", "b"),
    "dtype": ("float16", "float16", "bfloat16", "bfloat16"),
    "kernels": ("a", "a", "b", "b"),
    "no_warmup": ("", True, "true", True),
    "embedding_batch_size": ("5", 5, "6", 6),
    "embedding_max_length": ("5", 5, "6", 6),
    "max_batch_tokens": ("5", 5, "6", 6),
    "rerank_batch_size": ("5", 5, "6", 6),
    "pooling": ("cls", "cls", "last", "last"),
    "embd_normalize": ("=-1", -1, "2", 2),
    "embeddings": ("", True, "on", True),
    "reranking": ("", True, "yes", True),
    "rerank_documents": ("object", "object", "object", "object"),
    "embedding_queue_depth": ("5", 5, "6", 6),
    "embedding_request_timeout_secs": ("5", 5, "6", 6),
    "host": ("a", "a", "b", "b"),
    "port": ("5", 5, "6", 6),
    "ssl_cert_file": ("/a", Path("/a"), "/b", Path("/b")),
    "ssl_key_file": ("/a", Path("/a"), "/b", Path("/b")),
    "cors_origin": ("*", ("*",), "http://b,http://c", ("http://b", "http://c")),
    "api_key": ("a", ("a",), "b", ("b",)),
    "api_key_file": ("/a", Path("/a"), "/b", Path("/b")),
    "max_body_mib": ("5", 5, "6", 6),
    "media_path": ("/a", Path("/a"), "/b", Path("/b")),
    "allow_private_urls": ("", True, "1", True),
}
"""Per flag: an argument, what it means, a variable's value, and what that means."""


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("THEODOLITE_", "MLXCEL_", "LLAMA_")):
            monkeypatch.delenv(name)


def parse(*argv: str) -> Config:
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    config.add_arguments(parser)
    return config.resolve(parser.parse_args(argv))


def given(flag: Flag, text: str, name: str) -> tuple[str, ...]:
    if flag.switch:
        return (name,)
    return (name + text,) if text.startswith("=") else (name, text)


def test_the_tables_are_complete() -> None:
    assert {flag.field for flag in ALL} == {field.name for field in dataclasses.fields(Config)}
    assert set(VALUES) == {flag.field for flag in ALL}
    assert parse() == Config()


@pytest.mark.parametrize("flag", ALL, ids=lambda flag: flag.field)
def test_each_spelling_sets_it(flag: Flag) -> None:
    text, meaning, _, _ = VALUES[flag.field]
    for name in flag.names:
        assert getattr(parse(*given(flag, text, name)), flag.field) == meaning


@pytest.mark.parametrize("flag", ALL, ids=lambda flag: flag.field)
def test_each_variable_sets_it_in_order_and_the_flag_wins(flag: Flag, monkeypatch: pytest.MonkeyPatch) -> None:
    text, meaning, variable, from_variable = VALUES[flag.field]
    assert flag.environment[:2] == (f"THEODOLITE_{flag.variable}", f"MLXCEL_{flag.variable}")
    other = "0" if flag.switch else variable
    for name in reversed(flag.environment):  # the weakest first; each stronger one that follows has to win
        monkeypatch.setenv(name, variable)
        assert getattr(parse(), flag.field) == from_variable
        if flag.switch:
            monkeypatch.setenv(name, other)
            assert getattr(parse(), flag.field) is False
    assert getattr(parse(*given(flag, text, flag.names[-1])), flag.field) == meaning


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({"LLAMA_ARG_MODEL": "llama"}, "llama"),
        ({"LLAMA_ARG_MODEL": "llama", "MLXCEL_MODEL": "mlxcel"}, "mlxcel"),
        ({"LLAMA_ARG_MODEL": "llama", "MLXCEL_MODEL": "mlxcel", "THEODOLITE_MODEL": "own"}, "own"),
        ({"LLAMA_ARG_MODEL": "llama", "THEODOLITE_MODEL": ""}, "llama"),
    ],
)
def test_who_wins(variables: dict[str, str], wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert parse().model == wanted
    assert parse("-m", "flag").model == "flag"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("--port", "65536"), "at most 65535"),
        (("--port", "x"), "whole number"),
        (("--embedding-batch-size", "0"), "at least 1"),
        (("--embd-normalize=-2",), "at least -1"),
        (("--pooling", "none"), "one vector per token"),
        (("--pooling", "max"), "mean, cls, last, rank"),
        (("--rerank-documents", "x"), "as-sent, object"),
        (("--dtype", "int8"), "auto"),
    ],
)
def test_wrong_values_are_refused(argv: tuple[str, ...], message: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=message):
        parse(*argv)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("MLXCEL_EMBEDDING_BATCH_SIZE", "x", "--embedding-batch-size"),
        ("LLAMA_ARG_PORT", "99999", "--port"),
        ("LLAMA_ARG_POOLING", "none", "--pooling"),
        ("THEODOLITE_OFFLINE", "maybe", "--offline"),
    ],
)
def test_wrong_variables_are_refused_by_flag(
    name: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RequestError, match=message):
        parse()


def test_values_that_mean_another() -> None:
    assert (parse("--pooling", "rank").pooling, parse("--pooling", "rank").reranking) == (None, True)
    assert parse("--embedding-request-timeout-secs", "0").timeout == 120
    assert parse("--max-body-mib", "2").max_body == 2 * 1024 * 1024


# ------------------------------------------------------------ what is served


def tasks(folders: Path, **fields: Any) -> list[tuple[str, Task]]:
    made = {key: str(folders / value) if value in ("bert", "cross", "bert-nan", "cross-nan", "gpt") else value
            for key, value in fields.items()}  # fmt: skip
    return [(served.id, served.task) for served in models.plan(Config(**made))]


@pytest.fixture(scope="session")
def generator(folders: Path) -> str:
    (folders / "gpt").mkdir(exist_ok=True)
    (folders / "gpt/config.json").write_text('{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}')
    return "gpt"


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"model": "bert"}, [("bert", Task.EMBED)]),
        ({"model": "cross"}, [("cross", Task.RERANK)]),
        ({"embedding_model": "bert"}, [("bert", Task.EMBED)]),
        ({"reranker_model": "cross"}, [("cross", Task.RERANK)]),
        ({"model": "bert", "reranker_model": "cross"}, [("bert", Task.EMBED), ("cross", Task.RERANK)]),
        ({"model": "cross", "embedding_model": "bert"}, [("cross", Task.RERANK), ("bert", Task.EMBED)]),
        ({"model": "cross", "reranker_model": "cross"}, [("cross", Task.RERANK)]),
        ({"model": "gpt", "embedding_model": "bert"}, [("bert", Task.EMBED)]),
        ({"model": "bert", "embeddings": True}, [("bert", Task.EMBED)]),
        ({"model": "cross", "reranking": True}, [("cross", Task.RERANK)]),
    ],
)
def test_what_the_flags_serve(
    folders: Path, generator: str, fields: dict[str, Any], wanted: list[tuple[str, Task]]
) -> None:
    assert tasks(folders, **fields) == wanted


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "bert", "embedding_model": "bert-nan"}, "two embedding models"),
        ({"model": "cross", "reranker_model": "cross-nan"}, "two rerankers"),
        ({"model": "gpt"}, "generates text"),
        ({"embedding_model": "cross"}, "is a reranker"),
        ({"reranker_model": "bert"}, "is an embedding checkpoint"),
        ({"model": "bert", "reranking": True}, "--reranking"),
        ({"model": "cross", "embeddings": True}, "--embeddings"),
        ({"model": "cross", "pooling": "cls"}, "--pooling cls"),
        ({"model": "/no/such/folder"}, "/no/such/folder"),
    ],
)
def test_what_the_flags_refuse(folders: Path, generator: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TheodoliteError, match=message):
        tasks(folders, **fields)


def test_two_models_of_one_name_are_refused(folders: Path, tmp_path: Path) -> None:
    twin = tmp_path / "bert"
    twin.symlink_to(folders / "bert")
    with pytest.raises(RequestError, match="both be called 'bert'"):
        tasks(folders, model="bert", extra_model=(str(twin),))


def test_a_model_that_memory_cannot_hold_is_refused(folders: Path) -> None:
    assert len(tasks(folders, model="bert", extra_model=(str(folders / "cross"),), max_loaded_mib=100)) == 2
    big = folders / "big"
    if not big.exists():
        big.mkdir()
        for file in (folders / "cross").iterdir():
            (big / file.name).write_bytes(file.read_bytes())
        (big / "more.bin").write_bytes(b"0" * 2 * 1024 * 1024)
    with pytest.raises(CheckpointError, match="--max-loaded-mib 1"):
        tasks(folders, model="bert", extra_model=(str(big),), max_loaded_mib=1)


async def test_props_tell_what_was_resolved(start: Any, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLXCEL_EMBEDDING_POOLING", "max")
    for fields, pooling in (({}, "max"), ({"pooling": "last"}, "lasttoken")):
        client = await start(model=str(folders / "bert"), embd_normalize=1, **fields)
        found = (await (await client.get("/props")).json())["capabilities"]["embedding"]
        wanted = {"model": "bert", "dim": 16, "pooling": pooling, "embd_normalize": 1, "multi_vector": False}
        assert found == {**wanted, "max_length": 64}


@pytest.mark.parametrize("flag", ["--api-key", "--host", "--alias", "-m", "--extra-model", "--cors-origin"])
def test_an_empty_value_is_not_taken_for_none(flag: str) -> None:
    """``--api-key "$UNSET"`` would leave the server open, ``--host ""`` would listen on all interfaces."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    config.add_arguments(parser)
    with pytest.raises(argparse.ArgumentError):
        parser.parse_args([flag, ""])


def test_a_variable_with_an_empty_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEODOLITE_API_KEY", "secret,")
    with pytest.raises(RequestError, match="THEODOLITE_API_KEY"):
        config.resolve(argparse.Namespace())


@pytest.mark.parametrize("name", ["media_path", "models_dir", "ssl_cert_file", "ssl_key_file"])
def test_folders_and_files_that_are_not_there(tmp_path: Path, name: str) -> None:
    flag = "--" + name.replace("_", "-")
    with pytest.raises(RequestError, match=rf"{flag} .*nowhere: no such"):
        config.check_files(Config(**{name: tmp_path / "nowhere"}))


@pytest.mark.parametrize("origin", ["foo", "https://a/b", "example.org"])
def test_what_no_browser_sends_as_an_origin(origin: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=origin):
        config.origin(origin)
