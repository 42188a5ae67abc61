"""pytorch_model.bin without torch: both formats, views on shared storages, and nothing that a pickle asks for runs.

The files are written here with pickle and zipfile as torch.save writes them; the probe compares with torch itself.
"""

from __future__ import annotations

import collections
import pickle
import pickletools
import struct
import zipfile
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from theodolite import torch_reader
from theodolite.errors import CheckpointError

FLAT = np.arange(24, dtype=np.float32)


class Named:
    """Stands for a global of torch in a pickle that is written without torch."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


class Stored:
    """Stands for a storage."""

    def __init__(self, kind: str, key: str, length: int) -> None:
        self.kind, self.key, self.length = kind, key, length
        self.window: tuple | None = None


class Called:
    """Stands for a call of a global."""

    def __init__(self, module: str, name: str, *args: Any) -> None:
        self.named, self.args = Named(module, name), args


class Writer(pickle._Pickler):
    """Python's own pickler, with torch's persistent ids and names."""

    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, Stored):
            return ("storage", Named("torch", value.kind), value.key, "cpu", value.length, value.window)
        return None

    def save(self, value: Any, save_persistent_id: bool = True) -> None:
        if isinstance(value, Named):
            self.write(b"c" + value.module.encode() + b"\n" + value.name.encode() + b"\n")
        elif isinstance(value, Called):
            self.save(value.named)
            self.save(value.args)
            self.write(b"R")
        else:
            super().save(value, save_persistent_id)


def dumps(value: Any) -> bytes:
    import io

    stream = io.BytesIO()
    Writer(stream, 2).dump(value)
    pickletools.dis(stream.getvalue(), out=io.StringIO())  # what is written is a pickle
    return stream.getvalue()


def tensor(kind: str, key: str, length: int, offset: int, shape: tuple, stride: tuple) -> Called:
    hooks = Called("collections", "OrderedDict")
    return Called("torch._utils", "_rebuild_tensor_v2", Stored(kind, key, length), offset, shape, stride, False, hooks)


def archive(file: Path, value: Any, storages: dict[str, bytes], byteorder: bytes = b"little", packed: int = 0) -> Path:
    with zipfile.ZipFile(file, "w", packed) as made:
        made.writestr("archive/data.pkl", dumps(value))
        made.writestr("archive/byteorder", byteorder)
        for key, data in storages.items():
            made.writestr(f"archive/data/{key}", data)
        made.writestr("archive/version", "3\n")
    return file


def legacy(file: Path, value: Any, storages: dict[str, np.ndarray]) -> Path:
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {}}
    parts = [dumps(part) for part in (0x1950A86A20F9469CFC6C, 1001, system, value, sorted(storages))]
    parts += [struct.pack("<q", storages[key].size) + storages[key].tobytes() for key in sorted(storages)]
    file.write_bytes(b"".join(parts))
    return file


VIEWS = {
    "whole": tensor("FloatStorage", "0", 24, 0, (24,), (1,)),
    "part": tensor("FloatStorage", "0", 24, 6, (2, 3), (3, 1)),
    "turned": tensor("FloatStorage", "0", 24, 0, (3, 4), (1, 3)),
    "scalar": tensor("FloatStorage", "0", 24, 5, (), ()),
    "empty": tensor("FloatStorage", "0", 24, 0, (0, 4), (4, 1)),
    "parameter": Called("torch._utils", "_rebuild_parameter", tensor("FloatStorage", "0", 24, 20, (4,), (1,)), True),
}
WANTED = {
    "whole": FLAT,
    "part": FLAT[6:12].reshape(2, 3),
    "turned": FLAT[:12].reshape(4, 3).T,
    "scalar": np.float32(5),
    "empty": np.zeros((0, 4), np.float32),
    "parameter": FLAT[20:],
}


@pytest.mark.parametrize("form", ["zip", "legacy"])
def test_views_on_one_storage(tmp_path: Path, form: str) -> None:
    value = collections.OrderedDict(VIEWS) if form == "zip" else VIEWS
    value = dict(value)
    file = tmp_path / "pytorch_model.bin"
    made = archive(file, value, {"0": FLAT.tobytes()}) if form == "zip" else legacy(file, value, {"0": FLAT})
    found = torch_reader.read(made)
    assert set(found) == set(WANTED)
    for name, wanted in WANTED.items():
        np.testing.assert_array_equal(np.array(found[name]), wanted)


@pytest.mark.parametrize(
    ("kind", "dtype", "mlx"),
    [
        ("HalfStorage", np.float16, mx.float16),
        ("LongStorage", np.int64, mx.int64),
        ("ByteStorage", np.uint8, mx.uint8),
        ("BoolStorage", np.bool_, mx.bool_),
    ],
)
def test_number_formats(tmp_path: Path, kind: str, dtype: Any, mlx: mx.Dtype) -> None:
    data = np.array([0, 1, 1, 0], dtype)
    value = {"x": tensor(kind, "0", 4, 0, (4,), (1,))}
    found = torch_reader.read(archive(tmp_path / "a.bin", value, {"0": data.tobytes()}))["x"]
    assert found.dtype == mlx
    np.testing.assert_array_equal(np.array(found), data)


def test_bfloat16_by_its_bits(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0xC000, 0x3E80], np.uint16)  # 1, -2, 0.25
    value = {"x": tensor("BFloat16Storage", "0", 3, 0, (3,), (1,))}
    found = torch_reader.read(archive(tmp_path / "a.bin", value, {"0": bits.tobytes()}))["x"]
    assert found.dtype == mx.bfloat16
    assert found.astype(mx.float32).tolist() == [1.0, -2.0, 0.25]


@pytest.mark.parametrize(
    "called",
    [
        Called("builtins", "print", "a pickle ran"),
        Called("os", "system", "true"),
        Called("__builtin__", "eval", "1"),
        Called("torch._utils", "_rebuild_device_tensor_from_numpy", 1),
        Called("torch.nn.modules", "Linear", 1),
        Called("theodolite.torch_reader", "read", "x"),
    ],
    ids=lambda called: called.named.name,
)
@pytest.mark.parametrize("form", ["zip", "legacy", "plain"])
def test_a_pickle_that_asks_for_more_is_refused_by_name_and_not_run(tmp_path, capfd, called, form) -> None:
    file, value = tmp_path / "pytorch_model.bin", {"x": called}
    if form == "zip":
        archive(file, value, {})
    elif form == "legacy":
        legacy(file, value, {})
    else:
        file.write_bytes(dumps(value))
    with pytest.raises(CheckpointError, match=rf"pytorch_model.bin.*{called.named.name}"):
        torch_reader.read(file)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("view", "word"),
    [
        (tensor("FloatStorage", "0", 24, 20, (8,), (1,)), "beyond its storage"),
        (tensor("FloatStorage", "0", 24, 0, (2, 3), (100, 1)), "beyond its storage"),
        (tensor("FloatStorage", "0", 24, -1, (2,), (1,)), "negative"),
        (tensor("FloatStorage", "0", 24, 0, (2,), (-1,)), "negative"),
        (tensor("FloatStorage", "0", 10**9, 0, (10**9,), (1,)), "beyond its storage"),
        (tensor("FloatStorage", "7", 24, 0, (2,), (1,)), "storage 7"),
        (tensor("FloatStorage", "0", 26, 0, (26,), (1,)), "96 bytes, 104 were expected"),
        (tensor("FloatStorage", "0", 24, 0, (10**6, 10**6), (0, 0)), "larger than the file"),
        (3, "not a tensor"),
    ],
)
def test_a_view_outside_its_storage_is_refused(tmp_path: Path, view: Any, word: str) -> None:
    file = archive(tmp_path / "a.bin", {"x": view}, {"0": FLAT.tobytes()})
    with pytest.raises(CheckpointError, match=word):
        torch_reader.read(file)


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04", pickle.dumps({"a": 1}), b"\x80\x02."])
def test_files_that_are_no_checkpoint(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "pytorch_model.bin"
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
        torch_reader.read(file)


def test_half_a_file_is_refused(tmp_path: Path) -> None:
    whole = archive(tmp_path / "a.bin", VIEWS, {"0": FLAT.tobytes()}).read_bytes()
    for share in (0.2, 0.5, 0.9):
        (tmp_path / "half.bin").write_bytes(whole[: int(len(whole) * share)])
        with pytest.raises(CheckpointError, match=r"half\.bin"):
            torch_reader.read(tmp_path / "half.bin")


def test_big_endian_and_compressed_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="big-endian"):
        torch_reader.read(archive(tmp_path / "a.bin", VIEWS, {"0": FLAT.tobytes()}, b"big"))
    with pytest.raises(CheckpointError, match="compressed"):
        torch_reader.read(archive(tmp_path / "b.bin", VIEWS, {"0": FLAT.tobytes()}, packed=zipfile.ZIP_DEFLATED))


def test_a_window_on_another_storage_is_refused(tmp_path: Path) -> None:
    value = {"x": tensor("FloatStorage", "0", 24, 0, (4,), (1,))}
    value["x"].args[0].window = ("1", 8, 4)
    with pytest.raises(CheckpointError, match="a window on another"):
        torch_reader.read(legacy(tmp_path / "a.bin", value, {"0": FLAT}))


def test_a_pickle_cannot_set_attributes_of_what_it_is_given(tmp_path: Path) -> None:
    """Opcode BUILD, which sets attributes, on a function of the list: later files would be read with what it left."""
    pickled = b"\x80\x02}U\x01xctorch._utils\n_rebuild_tensor_v2\nN}U\x0c__defaults__K\x01\x85s\x86bs."
    with zipfile.ZipFile(tmp_path / "a.bin", "w") as made:
        made.writestr("archive/data.pkl", pickled)
    with pytest.raises(CheckpointError, match="no attribute '__defaults__'"):
        torch_reader.read(tmp_path / "a.bin")
