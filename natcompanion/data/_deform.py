"""An endless stream of deformed digits: rotated, scaled, sheared, shifted and bent."""

import math
from collections.abc import Collection

import torch
from torch.nn.functional import grid_sample

from natcompanion import _checks as check
from natcompanion.data._images import area_average, floating_dtype
from natcompanion.data._sets import mnist

BLOCK = 250  # digits are made in whole blocks: digit k does not depend on how many are asked for


def deformed_digits(
    n: int,
    *,
    start: int = 0,
    seed: int = 0,
    size: int = 28,
    split: str = "train",
    classes: Collection[int] | None = None,
    rotation: float = 15.0,
    scale: float = 0.15,
    shear: float = 0.15,
    shift: float = 2.0,
    bend: float = 1.0,
    smoothness: float = 4.0,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    r"""Return digits ``start`` to ``start + n - 1`` of an endless stream of deformed MNIST digits.

    Digit k of the stream depends on ``seed`` and the parameters alone, not on ``start`` or ``n``: a
    training loop asks for ``start=0, n``, then ``start=n``, and so on. The stream goes through the
    split again and again, each time with new deformations. The new image at pixel :math:`p`,
    counted from the centre, is the old one at

    .. math:: q = A (p - s) + d(p),

    where :math:`A` rotates, scales and shears, :math:`s` shifts, and :math:`d` is a smooth random
    field.

    Parameters
    ----------
    n : int
        How many digits.
    start : int
        The first one.
    seed : int
        Chooses the splits as in :func:`natcompanion.data.mnist`, and the deformations.
    size, split, classes, dtype
        As for :func:`natcompanion.data.mnist`.
    rotation : float
        Largest angle in degrees; uniform between minus this and this, as are the next three.
    scale : float
        Largest logarithm of the two scale factors.
    shear : float
        Largest shear.
    shift : float
        Largest shift in each direction, in pixels of the 28 by 28 image.
    bend : float
        Standard deviation of each component of the random field, in pixels.
    smoothness : float
        Width in pixels of the Gaussian window that smooths the field.

    Returns
    -------
    images : Tensor, shape (n, size, size)
        Pixels in [0, 1].
    labels : Tensor, shape (n,)
        The digits, int64.

    Raises
    ------
    ValueError
        If an argument is out of range.

    Examples
    --------
    >>> images, labels = deformed_digits(3, start=2)
    >>> again, _ = deformed_digits(5)
    >>> torch.equal(images, again[2:])
    True
    """
    n, start, size = (
        check.whole(n, "n", 1),
        check.whole(start, "start", 0),
        check.whole(size, "size", 1),
    )
    dtype = floating_dtype(dtype)
    sizes = {"rotation": rotation, "scale": scale, "shear": shear, "shift": shift, "bend": bend}
    for name, value in sizes.items():
        check.non_negative(value, name)
    check.positive(smoothness, "smoothness")
    images, labels = mnist(split=split, seed=seed, classes=classes, dtype=torch.float32)
    parts = []
    for block in range(start // BLOCK, (start + n - 1) // BLOCK + 1):
        index = torch.arange(block * BLOCK, (block + 1) * BLOCK) % len(images)
        generator = torch.Generator().manual_seed(_mix(seed, block))
        matrix, move, field = _random_deformations(generator, smoothness=smoothness, **sizes)
        wanted = slice(max(start - block * BLOCK, 0), start + n - block * BLOCK)
        parts.append((deform(images[index], matrix, move, field)[wanted], labels[index][wanted]))
    drawn = torch.cat([image for image, _ in parts])
    return area_average(drawn, size).clamp(0, 1).to(dtype), torch.cat([label for _, label in parts])


def deform(
    images: torch.Tensor, matrix: torch.Tensor, move: torch.Tensor, field: torch.Tensor
) -> torch.Tensor:
    """Deform images by bilinear interpolation; outside of the old image is background.

    Parameters
    ----------
    images : Tensor, shape (n, s, s)
    matrix : Tensor, shape (n, 2, 2)
        The linear part A, acting on (x, y) counted from the centre, x to the right and y down.
    move : Tensor, shape (n, 2)
        The shift (x, y) in pixels: to the right and down.
    field : Tensor, shape (n, s, s, 2)
        The displacement d in pixels.

    Returns
    -------
    Tensor, shape (n, s, s)
    """
    side = images.shape[-1]
    line = torch.arange(side, dtype=images.dtype) - (side - 1) / 2
    pixels = torch.stack(torch.meshgrid(line, line, indexing="xy"), dim=-1)
    sources = (pixels - move[:, None, None, :]) @ matrix.mT[:, None] + field
    return grid_sample(images[:, None], sources * 2 / side, align_corners=False)[:, 0]


def _random_deformations(
    generator: torch.Generator,
    *,
    rotation: float,
    scale: float,
    shear: float,
    shift: float,
    bend: float,
    smoothness: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Draw A, the shift and the field for one block."""
    uniform = 2 * torch.rand(BLOCK, 6, generator=generator, dtype=torch.float32) - 1
    angle = uniform[:, 0] * math.radians(rotation)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], dim=1).reshape(
        -1, 2, 2
    )
    stretch = torch.diag_embed((uniform[:, 1:3] * scale).exp())
    stretch[:, 0, 1] = uniform[:, 3] * shear
    line = torch.arange(28, dtype=torch.float32)
    distance = line[:, None] - line
    window = torch.exp(-((distance / smoothness) ** 2) / 2)
    window /= window.norm(dim=1, keepdim=True)  # rows of length 1: smoothed noise of variance 1
    noise = torch.randn(BLOCK, 2, 28, 28, generator=generator, dtype=torch.float32)
    field = (window @ noise @ window.T).permute(0, 2, 3, 1)
    return turn @ stretch, uniform[:, 4:] * shift, bend * field


def _mix(seed: int, block: int) -> int:
    """Return a seed of 63 bits that differs for each seed and block."""
    return (seed * 0x9E3779B97F4A7C15 + block * 0xBF58476D1CE4E5B9 + 1) % (1 << 63)
