"""Graph trees: their managers ask the allocator for checkpoints."""

import torch


def get_manager(device_index=None, create_if_none_exists=True):
    return torch.refused("getCheckpointState")() if create_if_none_exists else None


def mark_warmup_incomplete():
    manager = get_manager(create_if_none_exists=False)
    if manager is not None:
        manager.mark_warmup_incomplete()


def cudagraphify_impl(model, inputs, static_input_idxs, *args, **kwargs):
    return get_manager(kwargs["device_index"]).add_function(model)
