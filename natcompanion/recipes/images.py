"""Images in folders, one for each class, as tensors of one size."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Dataset

KINDS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


class Images(Dataset):
    """The images in ``folder/CLASS/``, in sorted order, as tensors of one size; hidden folders are
    no classes.

    Item ``(epoch, i)`` is image i as ``(tensor (3, size, size), class number)``. With ``augment``
    it is a crop of random place, size and shape, mirrored at random, which depends on (seed, epoch,
    i) alone.

    Parameters
    ----------
    folder : Path
    size : int
        Side of the tensors in pixels.
    augment : bool
    seed : int

    Raises
    ------
    ValueError
        If the folder has no images; when an image cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> from natcompanion.recipes import example_folder
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = example_folder(Path(name), classes=2, images=4)
    ...     image, label = Images(folder / "train", size=8)[0, 7]
    >>> image.shape, label
    (torch.Size([3, 8, 8]), 1)
    """

    def __init__(self, folder: Path, size: int, augment: bool = False, seed: int = 0) -> None:
        self.size, self.augment, self.seed = size, augment, seed
        found = Path(folder).iterdir() if Path(folder).is_dir() else []
        classes = sorted(p for p in found if p.is_dir() and not p.name.startswith("."))
        self.classes = [p.name for p in classes]
        self.files = [
            (path, label)
            for label, directory in enumerate(classes)
            for path in sorted(directory.iterdir())
            if path.suffix.lower() in KINDS
        ]
        if not self.files:
            raise ValueError(
                f"folder: expected images in {folder}/CLASS/, got none ({', '.join(sorted(KINDS))})"
            )

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, item: tuple[int, int]) -> tuple[torch.Tensor, int]:
        epoch, i = item
        path, label = self.files[i]
        try:
            with Image.open(path) as image:
                colours = image.convert("RGB")
        except (UnidentifiedImageError, OSError) as error:
            raise ValueError(
                f"folder: expected an image, got {path} ({error}); remove it"
            ) from error
        dice = random.Random(f"{self.seed} {epoch} {i}")
        box = random_box(*colours.size, dice) if self.augment else central_box(*colours.size)
        pixels = np.asarray(
            colours.resize((self.size,) * 2, Image.Resampling.BILINEAR, box), np.float32
        )
        if self.augment and dice.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1) / 64 - 2), label


def random_box(width: int, height: int, dice: random.Random) -> tuple[float, float, float, float]:
    """Return a box of 8 to 100 % of the area and of ratio 3:4 to 4:3, cut where it leaves the
    image.
    """
    area, ratio = width * height * dice.uniform(0.08, 1), dice.uniform(3 / 4, 4 / 3)
    w, h = min(width, (area * ratio) ** 0.5), min(height, (area / ratio) ** 0.5)
    left, top = dice.uniform(0, width - w), dice.uniform(0, height - h)
    return left, top, left + w, top + h


def central_box(width: int, height: int) -> tuple[float, float, float, float]:
    """Return the square in the middle with a side of 7/8 of the shorter one."""
    side = min(width, height) * 7 / 8
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
