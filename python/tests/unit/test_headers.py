"""What Python says of the library is what its C headers say."""

import ctypes
import dataclasses
import enum

import pytest
from headers import Headers

from gapless import _library, _numbers
from gapless.torch import _sleep

HEADERS = Headers()
PREFIXES = {
    _numbers.Status: "GAPLESS_ERROR_",
    _numbers.ErrorKind: "GAPLESS_KIND_",
    _numbers.Backup: "GAPLESS_BACKUP_",
    _numbers.PoolKind: "GAPLESS_POOL_",
    _numbers.Wake: "GAPLESS_WAKE_",
}
STRUCTS = {
    "gapless_config": _library.Config,
    "gapless_stats": _library.Stats,
    "gapless_tag_backup": _library.TagBackup,
    "gapless_slept": _library.Slept,
    "gapless_torch_pool": _library.Pool,
    "gapless_torch_block": _library.Block,
}


@pytest.mark.parametrize("numbers", PREFIXES, ids=lambda numbers: numbers.__name__)
def test_numbers_have_the_names_and_values_of_the_headers(numbers):
    named = HEADERS.named(PREFIXES[numbers])
    if numbers is _numbers.Status:
        named["OK"] = HEADERS.numbers["GAPLESS_OK"]
    assert {number.name: number.value for number in numbers} == named


def test_every_number_of_the_headers_has_a_place():
    versions = {f"GAPLESS_VERSION_{part}" for part in ("MAJOR", "MINOR", "PATCH")}
    elsewhere = {"GAPLESS_OK", "GAPLESS_SHARE_HANDLE_BYTES"} | versions
    assert {name for name in HEADERS.numbers if not name.startswith(tuple(PREFIXES.values()))} == elsewhere
    enums = {its for its in vars(_numbers).values() if isinstance(its, type) and issubclass(its, enum.Enum)}
    assert enums == set(PREFIXES)


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_have_the_fields_of_the_headers(name):
    here = STRUCTS[name]._fields_
    there = HEADERS.structs[name]
    assert [field for field, _ in here] == [field for _, field in there]
    for (field, kind), (spelled, _) in zip(here, there):
        assert HEADERS.fits(kind, spelled, STRUCTS), f"{field} is {spelled}, and here {kind}"


def test_every_struct_is_compared():
    structs = {its for its in vars(_library).values() if isinstance(its, type) and issubclass(its, ctypes.Structure)}
    assert structs == set(STRUCTS.values())


@pytest.mark.parametrize("name", _library._SIGNATURES)
def test_functions_are_called_as_the_headers_declare_them(name):
    result, arguments = _library._SIGNATURES[name]
    declared, given = HEADERS.functions[name]
    assert HEADERS.fits(result, declared, STRUCTS), f"the result is {declared}, and here {result}"
    assert len(arguments) == len(given)
    for at, (kind, spelled) in enumerate(zip(arguments, given)):
        assert HEADERS.fits(kind, spelled, STRUCTS), f"argument {at} is {spelled}, and here {kind}"


def test_what_a_sleep_did_has_all_figures():
    names = [field.name for field in dataclasses.fields(_sleep.Slept)]
    assert names == [name for name, _ in _library.Slept._fields_ if name != "size"]
