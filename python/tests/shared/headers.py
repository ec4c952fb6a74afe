"""What the C headers of the library declare: numbers, structs and functions, with the types that ctypes has for them."""

import ctypes
import re
from pathlib import Path

INCLUDE = Path(__file__).resolve().parents[3] / "include"
SCALARS = {
    "char": ctypes.c_char,
    "double": ctypes.c_double,
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "size_t": ctypes.c_size_t,
    "ssize_t": ctypes.c_ssize_t,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "uint8_t": ctypes.c_uint8,
    "void": None,
}


class Headers:
    """The declarations of all headers together."""

    def __init__(self):
        text = "\n".join(path.read_text() for path in sorted(INCLUDE.glob("*.h")))
        text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
        self.numbers = {name: int(value) for name, value in re.findall(r"^#define (GAPLESS_\w+) (\d+)\s*$", text, re.MULTILINE)}
        # Without what is for the preprocessor, and without bodies of functions.
        text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.MULTILINE)
        text = re.sub(r"static inline[^{]*\{.*?\}", "", text, flags=re.DOTALL).replace('extern "C" {', "")
        self.structs = {
            name: [_declared(field) for field in fields.split(";") if field.strip()]
            for fields, name in re.findall(r"typedef struct \w+ \{(.*?)\} (\w+);", text, re.DOTALL)
        }
        self.aliases = dict(reversed(pair) for pair in re.findall(r"typedef (\w+) (\w+);", text))
        # Functions that are called back.
        self.pointers = set(re.findall(r"typedef \w+ \(\*(\w+)\)", text))
        text = re.sub(r"typedef struct \w+ \{.*?\} \w+;|typedef [^;]*;", "", text, flags=re.DOTALL)
        self.functions = {}
        for result, name, arguments in re.findall(r"([\w ]+[ *])(gapless_\w+)\(([^()]*)\);", text):
            given = [] if arguments.strip() == "void" else [_declared(argument)[0] for argument in arguments.split(",")]
            self.functions[name] = (_spelled(result), given)

    def named(self, prefix):
        """The numbers whose names begin so, without that."""
        return {name.removeprefix(prefix): value for name, value in self.numbers.items() if name.startswith(prefix)}

    def fits(self, kind, spelled, structs):
        """Whether a type of ctypes is one that C spells so; ``structs`` has those of ctypes by their names in C."""
        if spelled.endswith("*") or spelled in self.pointers:
            if kind in (ctypes.c_void_p, ctypes.c_char_p):
                return kind is ctypes.c_void_p or spelled in ("char*", "uint8_t*")
            # A pointer of ctypes says what it points to.
            to = getattr(kind, "_type_", None)
            return isinstance(to, type) and self.fits(to, spelled[:-1], structs)
        spelled = self.aliases.get(spelled, spelled)
        return kind is (structs[spelled] if spelled in structs else SCALARS.get(spelled, Headers))


def _spelled(text):
    """A type without what does not change it."""
    return re.sub(r"\b(?:const|struct)\b|\s", "", text)


def _declared(text):
    """The type and the name of a field or an argument."""
    kind, name = re.fullmatch(r"\s*(.*?)(\w+)\s*", text, re.DOTALL).groups()
    return _spelled(kind), name
