"""A training loop on gapless, which sleeps as a whole between its steps. Gradients need not be kept."""

import gapless
import gapless.torch
import torch
from commands import check, empty, filled, serve, write

LAYERS = range(1, 9)
parameters, states, gradients = {}, {}, {}


def start():
    for layer in LAYERS:
        parameters[layer] = filled(layer, layer)
        with gapless.torch.tag("optimizer"):
            states[layer] = filled(2 * layer, 100 + layer)
        with gapless.torch.tag("gradients", backup="discard"):
            gradients[layer] = empty(layer)
    return gapless.torch.backend()


def step(number):
    """Whatever was there before the turn is checked, and written anew. Activations come and go, each step with other sizes."""
    activations = []
    for layer in LAYERS:
        check(parameters[layer], (number - 1) * 1000 + layer)
        check(states[layer], (number - 1) * 1000 + 100 + layer)
        activations.append(empty(1 + (layer * number) % 5))
        write(gradients[layer], number)
    for layer in LAYERS:
        check(gradients[layer], number)
        del activations[layer % len(activations)]
        write(parameters[layer], number * 1000 + layer)
        write(states[layer], number * 1000 + 100 + layer)
    # A layer's tensors are made anew, somewhere else.
    layer = 1 + number % len(LAYERS)
    parameters[layer] = filled(layer, number * 1000 + layer)
    return torch.cuda.memory_allocated() >> 20


def sleep():
    gapless.torch.sleep()
    return torch.cuda.memory_reserved()


def wake(seconds):
    try:
        gapless.torch.wake(wait=seconds)
    except gapless.OutOfMemoryError as error:
        return str(error)
    return None


if __name__ == "__main__":
    serve({"start": start, "step": step, "sleep": sleep, "wake": wake})
