"""Train an Inception network on a folder of images, with PRONG, in one process or under torchrun.

    python -m natcompanion.recipes.imagefolder FOLDER OUTPUT --size 64 --batch 64
    torchrun --nproc-per-node 8 -m natcompanion.recipes.imagefolder FOLDER OUTPUT --device cuda

``FOLDER/train/CLASS/*`` and ``FOLDER/val/CLASS/*`` are the images. OUTPUT receives ``log.jsonl``
and ``checkpoint.pt``; the same command goes on from the checkpoint, to the last bit on the same
number of processes. Batch normalization and PRONG together are the paper's PRONG+. Source: prong
Section 4.3.
"""

import argparse
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields

import torch
import torch.distributed as dist

from natcompanion import _distributed
from natcompanion.recipes.training import Settings, train


@contextmanager
def processes(device: str) -> Iterator[None]:
    """Join the other processes if torchrun has started several, and leave them at the end."""
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if several and device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if several:
        dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        if several:
            dist.destroy_process_group()


def main(arguments: list[str] | None = None) -> None:
    """Read the settings from the command line, train, and print the result."""
    parser = argparse.ArgumentParser(prog="imagefolder", description=__doc__.partition("\n")[0])
    for field in fields(Settings):
        kind = int if field.name == "steps" else field.type
        if field.default is MISSING:
            parser.add_argument(field.name, type=kind)
        else:
            parser.add_argument(
                f"--{field.name.replace('_', '-')}", type=kind, default=field.default
            )
    settings = Settings(**vars(parser.parse_args(arguments)))
    with processes(settings.device):
        result = train(settings)
        if _distributed.rank() == 0:
            print(json.dumps(result))


if __name__ == "__main__":
    main()
