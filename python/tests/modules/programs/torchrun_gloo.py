"""Two ranks of torchrun, with tensors of the device over gloo, which adds on the host: gradients are summed, parameters sent."""

import torch
import torch.distributed


def on_device(values):
    return torch.empty_like(values, device="cuda").copy_(values)


torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.cuda.set_device(0)
for size in (1000, 1 << 20):
    gradient = on_device(torch.full((size,), float(rank + 1)))
    torch.distributed.all_reduce(gradient)
    assert bool((gradient.cpu() == 3).all())
    parameter = on_device(torch.full((size,), float(rank + 1)))
    torch.distributed.broadcast(parameter, 0)
    assert bool((parameter.cpu() == 1).all())
    gathered = [torch.empty(size, device="cuda") for _ in range(2)]
    torch.distributed.all_gather(gathered, on_device(torch.full((size,), float(rank))))
    assert [float(part.cpu()[0]) for part in gathered] == [0, 1]
torch.distributed.barrier()
torch.distributed.destroy_process_group()
