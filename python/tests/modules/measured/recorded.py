"""Recorded traces: their ops, and the most that is awake."""

import collections
import gzip

Op = collections.namedtuple("Op", "kind name rest")


def ops(path):
    """The ops of a trace: a letter, an ID, a tag or a label, and what else the line has."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt") as trace:
        for line in trace:
            words = line.split()
            if words and len(words[0]) == 1 and words[0] in "afmsw":
                yield Op(words[0], words[1], words[2:])


def peak_awake(path):
    """The most requested bytes that are live and awake at a time."""
    awake, asleep, sizes, tags = collections.Counter(), collections.Counter(), {}, {}
    sleeping, most = set(), 0
    for kind, name, rest in ops(path):
        if kind == "a":
            sizes[name], tags[name] = int(rest[0]), rest[2] if len(rest) > 2 else ""
            awake[tags[name]] += sizes[name]
            most = max(most, sum(awake.values()))
        elif kind == "f":
            tag = tags.pop(name)
            (asleep if name in sleeping else awake)[tag] -= sizes.pop(name)
            sleeping.discard(name)
        elif kind in "sw":
            from_, to = (awake, asleep) if kind == "s" else (asleep, awake)
            for tag in list(from_) if name == "*" else [name]:
                to[tag] += from_.pop(tag, 0)
                of_tag = {block for block, its in tags.items() if its == tag}
                sleeping = sleeping | of_tag if kind == "s" else sleeping - of_tag
            most = max(most, sum(awake.values()))
    return most
