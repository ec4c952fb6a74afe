"""The calls that work natively, with the plug-in and with the object: a table, printed by cargo xtask torch-without-gpu --table."""

import contextlib
import io
import os

from differences import compare, run

NOTHING = {"case": set(), "function": set()}
ROWS = {
    "a MemPool with an allocator of its own": "pools_with_an_allocator_of_their_own",
    "three recordings of graph trees, checkpointed, replayed at equal addresses": "three_recordings",
    "stack traces in snapshots": "history_with_stacks",
    "out-of-memory observers": "out_of_memory_observers",
    "cudnn.benchmark": "cudnn_benchmark",
    "profile_memory=True": "profiler_figures",
}
WIDTH = max(map(len, ROWS)) + 2


def print_row(name, values):
    print(f"{name:{WIDTH}}" + "".join(f"{value:>10}" for value in values), flush=True)


def main():
    ways = {"native": run("native", "off"), "plug-in": run("gapless", "off")}
    ways["object"] = run("gapless", os.environ["GAPLESS_TORCH_OBJECTS"])
    native = ways["native"]
    counted = [key for key in native if native[key]["failure"] is None]
    lacks = {way: [name for kind, name in counted if told[kind, name]["failure"] is not None] for way, told in ways.items()}
    functions = {name for kind, name in counted if kind == "function"}
    wrong = {}
    for way, told in ways.items():
        with contextlib.redirect_stdout(io.StringIO()):
            different = [] if way == "native" else compare(native, told, NOTHING, way)
        # What fails is counted above.
        wrong[way] = [text for text in different if text.split(":")[0] not in lacks[way]]
    print_row("", ways)
    print_row(f"functions that refuse, of {len(functions)}", [sum(name in functions for name in lacks[way]) for way in ways])
    print_row("answers outside of the documented rules", [len(wrong[way]) for way in ways])
    print_row(f"scripts that fail, of {len(counted) - len(functions)}", [sum(name not in functions for name in lacks[way]) for way in ways])
    for name, case in ROWS.items():
        print_row(name, ["yes" if told["case", case]["failure"] is None else "no" for told in ways.values()])
    for way in ways:
        for name in sorted(lacks[way]):
            print(f"  {way}: {name} fails: {next(told['failure'] for (_, of), told in ways[way].items() if of == name)}")
        for text in wrong[way]:
            print(f"  {way}: {text}")


if __name__ == "__main__":
    main()
