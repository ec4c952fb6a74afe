"""The tensors of a recorded trace. Their bytes are not touched."""

import torch


class Tensors:
    """Those that are live, and the stream that is current."""

    def __init__(self):
        self._live = {}
        self._streams = {"0": torch.cuda.default_stream()}
        self._current = "0"
        self.requested = 0

    def allocate(self, name, size, stream):
        if stream != self._current:
            if stream not in self._streams:
                self._streams[stream] = torch.cuda.Stream()
            torch.cuda.set_stream(self._streams[stream])
            self._current = stream
        self._live[name] = torch.empty(size, dtype=torch.uint8, device="cuda")
        self.requested += size

    def free(self, name):
        self.requested -= self._live.pop(name).numel()
