"""Which line of a program holds what, read off a snapshot."""

import sysconfig

from dictionaries import Seen

from gapless import _frames, results


def block(size, *frames, state="active_allocated"):
    frames = [{"filename": filename, "line": line, "name": "f"} for filename, line in frames]
    return {"requested_size": size, "state": state, "frames": frames}


def test_bytes_are_summed_by_the_innermost_line_of_the_program():
    library = sysconfig.get_paths()["purelib"] + "/torch/nn.py"
    blocks = [
        block(100, ("??", 0), (library, 1), ("/home/a.py", 3), ("/home/b.py", 9)),
        block(300, ("/home/b.py", 9)),
        block(50, ("/home/a.py", 3)),
        block(999, ("/home/a.py", 3), state="inactive"),
        block(999, (library, 1), ("<string>", 1)),
        block(999),
    ]
    segments = [{"device": 0, "blocks": blocks}, {"device": 1, "blocks": [block(7, ("/home/c.py", 1))]}]
    rows = _frames.largest_live(segments, 0)
    assert rows == [
        {"frame": "/home/b.py:9 f", "bytes": 300, "blocks": 1},
        {"frame": "/home/a.py:3 f", "bytes": 150, "blocks": 2},
    ]
    assert _frames._text(rows).splitlines() == [
        "",
        "  largest live allocations by line:",
        "         300 B in 1 block at /home/b.py:9 f",
        "         150 B in 2 blocks at /home/a.py:3 f",
    ]
    many = [block(size, ("/home/a.py", size)) for size in range(1, 30)]
    rows = _frames.largest_live([{"device": 0, "blocks": many}], 0)
    assert [row["bytes"] for row in rows] == list(range(29, 19, -1))
    Seen().expect(list[results.LineUse], rows)


def test_sizes_are_those_of_the_report():
    sizes = [0, 1023, 1024, 300 << 20, 1943453450]
    assert [_frames._size(size) for size in sizes] == ["0 B", "1023 B", "1 KiB", "300 MiB", "1.81 GiB"]


def test_nothing_is_said_of_an_error_that_was_not_explained():
    assert _frames.of_refusal(RuntimeError("CUDA out of memory.")) is None
    assert _frames._text([]) == ""
