"""The graph trees of compiled code with CUDA graphs."""

import torch


def call_with_graphs(model, inputs):
    from torch._inductor.cudagraph_trees import cudagraphify_impl

    return cudagraphify_impl(model, inputs, (), device_index=0, is_backward=False, is_inference=False)(inputs)


def call_backward_without_graphs(model, inputs):
    manager = torch._inductor.cudagraph_trees.get_manager(0, create_if_none_exists=False)
    assert manager is not None, "CUDAGraph manager must not be None"
    manager.set_to_running_backward()
    return model(inputs)
