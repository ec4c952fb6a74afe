"""Whether dictionaries are what their types say."""

import typing


class Seen:
    """Compares values with types, and keeps which keys of which types there were."""

    def __init__(self, partial=()):
        """``partial`` has the types of which there may be more keys."""
        self.partial = partial
        self.keys = {}

    def expect(self, kind, value, at="it"):
        """Fails where a value is not of a type: of a dictionary, each key is one of its type, and none is missing."""
        origin, of = typing.get_origin(kind), typing.get_args(kind)
        if hasattr(kind, "__required_keys__"):
            hints = typing.get_type_hints(kind)
            missing, unknown = kind.__required_keys__ - set(value), set(value) - set(hints)
            assert not missing, f"{at} has no {missing}, which {kind.__name__} demands"
            assert not unknown or kind in self.partial, f"{at} has {unknown}, which {kind.__name__} lacks"
            self.keys.setdefault(kind, set()).update(value)
            for key in hints.keys() & value.keys():
                self.expect(hints[key], value[key], f"{at}.{key}")
        elif origin is typing.Union:
            # All of them are of one type and None.
            if value is not None:
                self.expect(of[0], value, at)
        elif origin is typing.Literal:
            assert value in of, (at, value)
        elif origin is list:
            assert type(value) is list, (at, value)
            for its in value:
                self.expect(of[0], its, f"{at}[]")
        elif origin is dict:
            for its in value.values():
                self.expect(of[1], its, f"{at}[...]")
        elif kind is not typing.Any:
            assert type(value) is kind, (at, kind, value)

    def expect_all(self, kinds, but):
        """Fails for a type, or a key of one, that was never there, but for some keys."""
        hints = {kind: set(typing.get_type_hints(kind)) - but for kind in kinds}
        missing = {kind.__name__: keys - self.keys.get(kind, set()) for kind, keys in hints.items()}
        assert not any(missing.values()), {name: keys for name, keys in missing.items() if keys}
