"""Tensors from pytorch_model.bin without torch, through an unpickler that can build tensors and do nothing else.

A pickle is a program, and torch's own reader once ran whatever it held. Here every name that a pickle asks for is
looked up in a short list; anything else is refused by name, unrun. Both of torch.save's formats are read: the zip
archive and the older stream of pickles.
"""

from __future__ import annotations

import math
import mmap
import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
import numpy as np

from theodolite.errors import CheckpointError

MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
LOCAL_HEADER = 30
"""Bytes of a zip entry's own header before its name."""
DTYPES = {
    "FloatStorage": np.float32,
    "DoubleStorage": np.float64,
    "HalfStorage": np.float16,
    "BFloat16Storage": np.uint16,  # numpy has no bfloat16: carried as its bits
    "LongStorage": np.int64,
    "IntStorage": np.int32,
    "ShortStorage": np.int16,
    "CharStorage": np.int8,
    "ByteStorage": np.uint8,
    "BoolStorage": np.bool_,
}


@dataclass(frozen=True)
class StorageType:
    """What a pickle names as ``torch.FloatStorage``."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A flat run of numbers that views share."""

    key: str
    type: StorageType
    length: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """The numbers' type."""
        return np.dtype(DTYPES[self.type.name])

    @property
    def size(self) -> int:
        """Bytes."""
        return self.length * self.dtype.itemsize


@dataclass(frozen=True)
class Place:
    """Where a storage lies in the file."""

    start: int
    size: int


@dataclass(frozen=True)
class View:
    """A tensor: a window on a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read(file: Path) -> dict[str, mx.array]:
    """All tensors of one file, by name.

    :raises CheckpointError: if the file is damaged, is no file of torch.save, or holds more than tensors.
    """
    try:
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            views, places = _archive(data) if zipfile.is_zipfile(stream) else _legacy(stream)
            _expect_tensors(views)
            return {name: _tensor(name, view, data, places) for name, view in views.items()}
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None
    except Exception as error:  # a damaged pickle fails in any way
        raise CheckpointError(
            f"{file} is damaged, or no file of torch.save ({type(error).__name__}: {error})"
        ) from None


def _archive(data: mmap.mmap) -> tuple[Any, dict[str, Place]]:
    """The pickled object and where each storage's bytes lie, in the zip format."""
    with zipfile.ZipFile(_File(data)) as archive:
        names = archive.namelist()
        [pickled] = [name for name in names if name.endswith("/data.pkl")]
        root = pickled.removesuffix("data.pkl")
        if f"{root}byteorder" in names and archive.read(f"{root}byteorder") != b"little":
            raise CheckpointError("it was written on a big-endian machine")
        views = _Unpickler(archive.open(pickled)).load()
        places = {}
        for info in archive.infolist():
            if info.filename.startswith(f"{root}data/"):
                if info.compress_type != zipfile.ZIP_STORED:
                    raise CheckpointError("its storages are compressed, which torch.save never does")
                name, extra = struct.unpack_from("<HH", data, info.header_offset + 26)
                key = info.filename.removeprefix(f"{root}data/")
                places[key] = Place(info.header_offset + LOCAL_HEADER + name + extra, info.file_size)
        return views, places


def _legacy(stream: IO[bytes]) -> tuple[Any, dict[str, Place]]:
    """The same for the format before torch 1.6: pickles one after the other, then the storages."""
    stream.seek(0)
    if _Unpickler(stream).load() != MAGIC or _Unpickler(stream).load() != PROTOCOL:
        raise CheckpointError("it is a plain pickle, not a file of torch.save")
    if _Unpickler(stream).load().get("little_endian") is not True:
        raise CheckpointError("it was written on a big-endian machine")
    unpickler = _Unpickler(stream)
    views = unpickler.load()
    places = {}
    for key in _Unpickler(stream).load():
        [length] = struct.unpack("<q", stream.read(8))
        storage = unpickler.storages[key]
        if length != storage.length:
            raise CheckpointError(f"storage {key} has {length} numbers, {storage.length} were expected")
        places[key] = Place(stream.tell(), storage.size)
        stream.seek(storage.size, 1)
    return views, places


class _File:
    """A file object over mapped memory that closing does not unmap."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, len(self._data))[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size is None or size < 0 else self._at + size
        found = self._data[self._at : end]
        self._at += len(found)
        return found

    def close(self) -> None:
        pass


class _Unpickler(pickle.Unpickler):
    """Builds dictionaries of `View`; knows no other name."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(stream)
        self.storages: dict[str, Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if module == "torch._utils" and name in REBUILDERS:
            return REBUILDERS[name]
        if module == "torch" and name in DTYPES:
            return StorageType(name)
        raise CheckpointError(f"its pickle asks for {module}.{name}, which is not a tensor; it was not run")

    def persistent_load(self, pid: Any) -> Storage:
        kind, storage_type, key, _location, length, *window = pid
        if kind != "storage" or not isinstance(storage_type, StorageType):
            raise CheckpointError(f"its pickle refers to something that is no storage: {kind!r}")
        if any(window):
            raise CheckpointError(f"storage {key} is a window on another one, as only torch before 0.4 wrote them")
        return self.storages.setdefault(str(key), Storage(str(key), storage_type, int(length)))


class _Tensor:
    """``torch._utils._rebuild_tensor``: has no attribute that a pickle could set."""

    __slots__ = ()

    def __call__(self, storage: Storage, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> View:
        return View(storage, offset, tuple(shape), tuple(stride))


class _Parameter:
    """``torch._utils._rebuild_parameter``."""

    __slots__ = ()

    def __call__(self, view: View, *_: Any) -> View:
        return view


REBUILDERS = {
    "_rebuild_tensor": _Tensor(),
    "_rebuild_tensor_v2": _Tensor(),
    "_rebuild_parameter": _Parameter(),
}


def _expect_tensors(views: Any) -> None:
    if not isinstance(views, dict):
        raise CheckpointError(f"a dictionary of tensors was expected, not {type(views).__name__}")
    for name, view in views.items():
        if not isinstance(name, str) or not isinstance(view, View):
            raise CheckpointError(f"entry {name!r} is not a tensor but {type(view).__name__}")


def _tensor(name: str, view: View, data: mmap.mmap, places: dict[str, Place]) -> mx.array:
    storage = view.storage
    if storage.key not in places:
        raise CheckpointError(f"tensor {name} lies in storage {storage.key}, which the file does not hold")
    place, dtype = places[storage.key], storage.dtype
    if min((view.offset, *view.shape, *view.stride), default=0) < 0 or len(view.shape) != len(view.stride):
        raise CheckpointError(f"tensor {name} has a negative extent")
    reach = sum((n - 1) * step for n, step in zip(view.shape, view.stride, strict=True)) if all(view.shape) else -1
    if view.offset + reach >= storage.length or place.start + storage.size > len(data):
        raise CheckpointError(f"tensor {name} reaches beyond its storage; the file is incomplete")
    if place.size != storage.size:
        raise CheckpointError(f"storage {storage.key} has {place.size} bytes, {storage.size} were expected")
    if math.prod(view.shape) * dtype.itemsize > len(data):
        raise CheckpointError(f"tensor {name} repeats its storage until it is larger than the file")
    flat = np.frombuffer(data, dtype, storage.length, place.start)
    steps = tuple(step * dtype.itemsize for step in view.stride)
    window = np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, steps, writeable=False)
    copied = mx.array(np.ascontiguousarray(window).reshape(view.shape))
    del flat, window  # the mapping cannot be closed while numpy looks at it
    return copied.view(mx.bfloat16) if storage.type.name == "BFloat16Storage" else copied
