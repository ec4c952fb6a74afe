"""Growable tensors without PyTorch: what it does not take over is deleted here."""

import textwrap


def test_a_tensor_that_pytorch_refuses_keeps_nothing(run):
    run(textwrap.dedent("""
        import ctypes, types, gapless
        from gapless import _library
        from gapless.torch import _growable
        library = _library.load()
        start, taken = ctypes.c_void_p(), []

        def refuse(capsule):
            raise RuntimeError("no such tensor")

        def torch(from_dlpack):
            return types.SimpleNamespace(utils=types.SimpleNamespace(dlpack=types.SimpleNamespace(from_dlpack=from_dlpack)))

        _library.check(library.gapless_range_reserve(0, 8 << 20, ctypes.byref(start)))
        _library.check(library.gapless_range_grow(0, start, 4 << 20, None))
        assert "dltensor" in repr(_growable._bytes_of(torch(lambda capsule: capsule), 0, start.value))
        held = lambda: gapless.stats()["range_bytes"]
        try:
            _growable._bytes_of(torch(refuse), 0, start.value)
            raise AssertionError("the error was lost")
        except RuntimeError as error:
            assert str(error) == "no such tensor"
        _growable._close(0, start.value)
        # One tensor was taken, and nobody has deleted it.
        assert held() == 4 << 20
        _library.check(library.gapless_range_reserve(0, 8 << 20, ctypes.byref(start)))
        _library.check(library.gapless_range_grow(0, start, 2 << 20, None))
        try:
            _growable._bytes_of(torch(refuse), 0, start.value)
        except RuntimeError:
            pass
        _growable._close(0, start.value)
        assert held() == 4 << 20, held()
        _growable._close(0, start.value)
    """))
