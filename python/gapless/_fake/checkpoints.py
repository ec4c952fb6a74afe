"""``torch.save`` and ``torch.load`` where tensors have no data.

What is saved is kept in this process, and no file is written: a file of that name may hold a checkpoint with data.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import traceback
import weakref
from typing import Any, Callable, NamedTuple, Optional

import torch
from torch.utils._pytree import tree_map

from .values import is_without_data, script_line


class _Shape(NamedTuple):
    """A tensor as a view of a storage, without its data."""

    storage: int
    nbytes: int
    dtype: torch.dtype
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _Saved(NamedTuple):
    """A tensor that was saved. ``value`` is that of one that has data."""

    shape: _Shape
    device: str
    requires_grad: bool
    is_parameter: bool
    value: Optional[torch.Tensor]


def install() -> None:
    """Replaces ``torch.save`` and ``torch.load``."""
    plain_save, plain_load = torch.save, torch.load
    of_paths: dict[str, tuple[bytes, list[_Saved]]] = {}
    of_files: weakref.WeakKeyDictionary[Any, tuple[bytes, list[_Saved]]] = weakref.WeakKeyDictionary()
    told: set[str] = set()

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        pickled = io.BytesIO()
        pickler = _Pickler(pickled)
        pickler.dump(obj)
        if all(saved.value is not None for saved in pickler.tensors):
            plain_save(obj, f, *args, **kwargs)
            return
        kept = (pickled.getvalue(), pickler.tensors)
        if isinstance(f, (str, os.PathLike)):
            of_paths[os.path.realpath(f)] = kept
        else:
            of_files[f] = kept
        line = script_line(traceback.extract_stack())
        if line not in told:
            told.add(line)
            print(f"gapless: {line}: torch.save writes no file in this run: tensors have no data without a GPU", file=sys.stderr)

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        kept = of_paths.get(os.path.realpath(f)) if isinstance(f, (str, os.PathLike)) else of_files.get(f)
        if kept is not None:
            return _Unpickler(*kept, map_location).load()
        return _load_file(plain_load, f, map_location, *args, **kwargs)

    torch.save, torch.load = save, load  # type: ignore[assignment]


class _Pickler(pickle.Pickler):
    """Pickles an object without the tensors in it, which it lists."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[_Saved] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> Optional[int]:
        if not isinstance(obj, torch.Tensor):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            value = None if is_without_data(obj) else obj.detach().clone()
            device = "cuda" if obj.is_meta else obj.device.type
            is_parameter = isinstance(obj, torch.nn.Parameter)
            self.tensors.append(_Saved(_shape(obj), device, obj.requires_grad, is_parameter, value))
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    """Makes a saved object again, with new storages for its tensors."""

    def __init__(self, pickled: bytes, tensors: list[_Saved], map_location: Any) -> None:
        super().__init__(io.BytesIO(pickled))
        self._saved, self._map_location = tensors, map_location
        self._made: dict[int, torch.Tensor] = {}
        self._storages: dict[int, torch.Tensor] = {}

    def persistent_load(self, number: int) -> torch.Tensor:
        if number not in self._made:
            saved = self._saved[number]
            if saved.value is not None:
                tensor = saved.value.clone()
            else:
                tensor = _empty(self._storages, saved.shape, _location(self._map_location, None, saved.device))
            if saved.is_parameter:
                tensor = torch.nn.Parameter(tensor, saved.requires_grad)
            self._made[number] = tensor if saved.is_parameter else tensor.requires_grad_(saved.requires_grad)
        return self._made[number]


def _load_file(plain: Callable[..., Any], f: Any, map_location: Any, *args: Any, **kwargs: Any) -> Any:
    """``torch.load`` of a file with data, of which what belongs on a CUDA device goes there without its data."""
    on_device: set[int] = set()

    def keep(storage: Any, location: str) -> Any:
        if _location(map_location, storage, location) == "cuda":
            on_device.add(storage._cdata)
        return storage

    loaded = plain(f, keep, *args, **kwargs)
    storages: dict[int, torch.Tensor] = {}

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.untyped_storage()._cdata not in on_device:
            return leaf
        return _empty(storages, _shape(leaf), "cuda").requires_grad_(leaf.requires_grad)

    return loaded.cuda() if isinstance(loaded, torch.nn.Module) and on_device else tree_map(move, loaded)


def _location(map_location: Any, storage: Any, location: str) -> str:
    """The type of the device on which a storage of this location is loaded."""
    if isinstance(map_location, dict):
        location = str(map_location.get(location, location))
    elif callable(map_location):
        mapped = None if storage is None else map_location(storage, location)
        location = location if mapped is None else mapped.device.type
    elif map_location is not None:
        location = str(torch.device(map_location))
    return location.partition(":")[0]


def _shape(tensor: torch.Tensor) -> _Shape:
    storage = tensor.untyped_storage()
    return _Shape(storage._cdata, storage.nbytes(), tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())


def _empty(storages: dict[int, torch.Tensor], shape: _Shape, device: str) -> torch.Tensor:
    """A tensor of this shape. ``storages`` has those that were made for the same ones."""
    with torch.no_grad():
        whole = storages.get(shape.storage)
        if whole is None:
            whole = torch.empty(shape.nbytes // shape.dtype.itemsize, dtype=shape.dtype, device=device)
            storages[shape.storage] = whole
        return whole.view(shape.dtype).as_strided(shape.size, shape.stride, shape.offset).data
