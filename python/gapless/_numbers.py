"""The numbers of the library's C headers that have names. A test compares them with the headers."""

from __future__ import annotations

import enum


class Status(enum.IntEnum):
    """What a call of the library ended with: the ``GAPLESS_ERROR_...`` numbers of ``gapless.h``, where each is described."""

    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    OUT_OF_MEMORY = 3
    TOO_LARGE = 4
    NOT_ALLOCATED = 5
    STREAM = 6
    DRIVER = 7
    NO_DEVICE = 8
    BUFFER_TOO_SMALL = 9
    LEAKED = 10
    IN_USE = 11
    IO = 12
    NOT_FOUND = 13
    INTERNAL = 14
    SHARE = 15
    GONE = 16


class ErrorKind(enum.IntEnum):
    """The kind of a failure, as far as a program can act on it: the ``GAPLESS_KIND_...`` numbers of ``gapless.h``."""

    NONE = 0
    OUT_OF_MEMORY = 1
    NOT_SUPPORTED = 2
    INVALID_VALUE = 3
    DEVICE_LOST = 5
    DRIVER_OTHER = 6
    ADDRESSES_FRAGMENTED = 8
    FOREIGN_STREAM = 9
    TOO_MANY_STREAMS = 10
    CANNOT_WAIT = 11
    FORKED = 12
    IN_CALLBACK = 13
    REFUSED = 14


class Backup(enum.IntEnum):
    """What becomes of the bytes of what sleeps: the ``GAPLESS_BACKUP_...`` numbers."""

    DISCARD = 0
    PINNED = 1
    PAGEABLE = 2
    FILE = 3


class PoolKind(enum.IntEnum):
    """What a pool is for: the ``GAPLESS_POOL_...`` numbers."""

    GRAPH = 0
    ORDINARY = 1


class Wake(enum.IntFlag):
    """How to wake: the ``GAPLESS_WAKE_...`` numbers."""

    RETAIN_BACKUPS = 1
