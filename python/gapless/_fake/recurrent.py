"""Recurrent layers and packed sequences of the CUDA device, for tensors without data.

PyTorch's own code for them is written in C++, where these tensors are not on a CUDA device: it would take the cells of the CPU,
and read how long sequences are from tensors without data. What is done here is what aten/src/ATen/native/RNN.cpp and
PackedSequence.cpp do on a CUDA device without cuDNN.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Callable, NamedTuple, Optional

import torch

aten = torch.ops.aten
# The state of a cell: the hidden state, and of an LSTM also that of the cell.
_State = tuple[Any, ...]
# Of a cell: those of the input and of the hidden state, the biases of both, and of an LSTM the projection. The last may be missing.
_Weights = Sequence[Any]
_Cell = Callable[[Any, _State, _Weights], _State]


def install() -> None:
    """Replaces what of PyTorch's functions takes other cells on a CUDA device."""
    functions = torch._VF
    for name, layers in (("lstm", _lstm), ("gru", _gru), ("lstm_cell", _lstm_cell), ("gru_cell", _gru_cell)):
        _replace(functions, name, layers)
    # cuDNN's layout of the weights.
    torch.nn.RNNBase.flatten_parameters = lambda _: None  # type: ignore[method-assign]


def _replace(functions: Any, name: str, on_device: Callable[..., Any]) -> None:
    plain = getattr(functions, name)

    def chosen(data: Any, *args: Any) -> Any:
        return on_device(data, *args) if data.device.type == "cuda" else plain(data, *args)

    setattr(functions, name, chosen)


def pack(padded: Any, lengths: Any, batch_first: bool) -> tuple[Any, Any]:
    """``_pack_padded_sequence``: the lengths are known."""
    steps = padded.transpose(0, 1) if batch_first else padded
    # PyTorch's own checks, and its numbers of sequences in each step.
    _, batch_sizes = aten._pack_padded_sequence(torch.empty(steps.shape[:2], dtype=torch.uint8), lengths, False)
    begin, pieces = 0, []
    for batch, group in itertools.groupby(batch_sizes.tolist()):
        length = len(list(group))
        pieces.append(steps.narrow(0, begin, length).narrow(1, 0, batch).contiguous().view(-1, *steps.shape[2:]))
        begin += length
    return torch.cat(pieces), batch_sizes


class _Arguments(NamedTuple):
    """What ``torch.lstm`` and ``torch.gru`` are given beside the data."""

    state: Any
    weights: Sequence[Any]
    has_biases: bool
    layers: int
    dropout: float
    train: bool
    bidirectional: bool
    batch_first: bool
    # Of a packed sequence: how many sequences each step has.
    batch_sizes: Optional[list[int]] = None


def _arguments(given: Sequence[Any]) -> _Arguments:
    if isinstance(given[2], (list, tuple)):
        return _Arguments._make((*given[1:], False, given[0].tolist()))
    return _Arguments(*given)


def _lstm(data: Any, *given: Any) -> Any:
    arguments = _arguments(given)
    states = list(zip(*(part.unbind(0) for part in arguments.state)))
    outputs, states = _layers(_lstm_step, data, states, arguments)
    return (outputs, *(torch.stack(part, 0) for part in zip(*states)))


def _gru(data: Any, *given: Any) -> Any:
    arguments = _arguments(given)
    outputs, states = _layers(_gru_step, data, [(part,) for part in arguments.state.unbind(0)], arguments)
    return outputs, torch.stack([part for (part,) in states], 0)


def _lstm_cell(data: Any, state: Any, *weights: Any) -> Any:
    return _lstm_step(data, tuple(state), weights)


def _gru_cell(data: Any, state: Any, *weights: Any) -> Any:
    return _gru_step(data, (state,), weights)[0]


def _lstm_step(data: Any, state: _State, weights: _Weights) -> _State:
    hidden, cell = state
    of_input, of_hidden, *others = weights
    biases, projection = _biases(others)
    gates = torch.matmul(data, of_input.t()), torch.matmul(hidden, of_hidden.t())
    hidden, cell, _ = aten._thnn_fused_lstm_cell(*gates, cell, *biases)
    return (torch.matmul(hidden, projection.t()) if projection is not None else hidden), cell


def _gru_step(data: Any, state: _State, weights: _Weights) -> _State:
    of_input, of_hidden, *others = weights
    gates = torch.matmul(data, of_input.t()), torch.matmul(state[0], of_hidden.t())
    return (aten._thnn_fused_gru_cell(*gates, state[0], *_biases(others)[0])[0],)


def _biases(others: list[Any]) -> tuple[Sequence[Any], Any]:
    """The biases of a cell, and the projection of its hidden state; either may be missing."""
    biases = others[:2] if len(others) > 1 else (None, None)
    return biases, others[-1] if len(others) % 2 else None


def _layers(step: _Cell, data: Any, states: list[_State], given: _Arguments) -> tuple[Any, list[_State]]:
    """Runs all layers. ``states`` has one for each direction of each layer."""
    each = len(given.weights) // len(states)
    weights = [tuple(given.weights[begin : begin + each]) for begin in range(0, len(given.weights), each)]
    directions, ends = 2 if given.bidirectional else 1, []
    outputs = data.transpose(0, 1) if given.batch_first else data
    for layer in range(given.layers):
        own = slice(layer * directions, (layer + 1) * directions)
        if given.batch_sizes is None:
            outputs, after = _padded(step, outputs, states[own], weights[own])
        else:
            outputs, after = _packed(step, outputs, given.batch_sizes, states[own], weights[own])
        ends += after
        if given.dropout and given.train and layer < given.layers - 1:
            outputs = torch.dropout(outputs, given.dropout, True)
    return outputs.transpose(0, 1) if given.batch_first else outputs, ends


def _padded(step: _Cell, data: Any, states: list[_State], weights: Sequence[_Weights]) -> tuple[Any, list[_State]]:
    inputs = data.unbind(0)
    steps, end = _through(step, inputs, states[0], weights[0])
    outputs = torch.stack(steps, 0)
    if len(states) == 1:
        return outputs, [end]
    back, other_end = _through(step, inputs[::-1], states[1], weights[1])
    return torch.cat((outputs, torch.stack(back[::-1], 0)), -1), [end, other_end]


def _through(step: _Cell, inputs: Sequence[Any], state: _State, weights: _Weights) -> tuple[list[Any], _State]:
    outputs = []
    for one in inputs:
        state = step(one, state, weights)
        outputs.append(state[0])
    return outputs, state


def _packed(
    step: _Cell, data: Any, sizes: list[int], states: list[_State], weights: Sequence[_Weights]
) -> tuple[Any, list[_State]]:
    outputs, end = _ahead(step, data, sizes, states[0], weights[0])
    if len(states) == 1:
        return outputs, [end]
    back, other_end = _back(step, data, sizes, states[1], weights[1])
    return torch.cat((outputs, back), -1), [end, other_end]


def _ahead(step: _Cell, data: Any, sizes: list[int], state: _State, weights: _Weights) -> tuple[Any, _State]:
    begin, last, outputs, ends = 0, sizes[0], [], []
    for size in sizes:
        if size < last:
            # Of the sequences that are over.
            ends.append(_part(state, size, last))
            state = _part(state, 0, size)
        state = step(data.narrow(0, begin, size), state, weights)
        outputs.append(state[0])
        begin, last = begin + size, size
    return torch.cat(outputs, 0), _joined([state, *reversed(ends)])


def _back(step: _Cell, data: Any, sizes: list[int], first: _State, weights: _Weights) -> tuple[Any, _State]:
    end, last, outputs, state = data.size(0), sizes[-1], [], _part(first, 0, sizes[-1])
    for size in reversed(sizes):
        if size > last:
            state = _joined([state, _part(first, last, size)])
        state = step(data.narrow(0, end - size, size), state, weights)
        outputs.append(state[0])
        end, last = end - size, size
    return torch.cat(outputs[::-1], 0), state


def _part(state: _State, begin: int, end: int) -> _State:
    return tuple(part.narrow(0, begin, end - begin) for part in state)


def _joined(states: list[_State]) -> _State:
    return tuple(torch.cat(parts, 0) for parts in zip(*states))
