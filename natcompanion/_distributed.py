"""The one place where processes talk: sums over all processes of ``torch.distributed``, if there
are several.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist


def world_size() -> int:
    """Return the number of processes; 1 unless ``torch.distributed`` is initialized."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process; 0 unless ``torch.distributed`` is initialized."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


@torch.no_grad()
def reduce_sum(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its sum over all processes, in place. Every process must call with the
    same shapes.
    """
    if world_size() == 1:
        return
    for group in _by_kind(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in group])
        dist.all_reduce(flat)
        pieces = flat.split([tensor.numel() for tensor in group])
        for tensor, piece in zip(group, pieces, strict=True):
            tensor.copy_(piece.view_as(tensor))


def reduce_mean(tensors: Sequence[torch.Tensor]) -> None:
    """Replace each tensor by its mean over all processes, in place."""
    reduce_sum(tensors)
    for tensor in tensors if world_size() > 1 else ():
        tensor.div_(world_size())


def _by_kind(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Group tensors by dtype and device, in the order of their first appearance."""
    groups: dict[tuple, list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(groups.values())
