"""PyTorch without a GPU, for ``python -m gapless.record --fake``. Importing this package imports no PyTorch; ``tensors`` does."""
