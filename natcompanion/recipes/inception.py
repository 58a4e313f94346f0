"""A small Inception network with batch normalization."""

from itertools import pairwise

import torch
from torch import nn

from natcompanion import _checks as check


class Convolution(nn.Sequential):
    """A convolution, batch normalization and a rectifier.

    The convolution keeps its bias, although batch normalization cancels it: with a bias PRONG can
    centre the input.
    """

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, size, stride, padding=size // 2),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )


class Block(nn.Module):
    """Four branches side by side: 1x1, 3x3, two of 3x3, and pooling. ``outputs`` maps, a quarter
    from each.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        quarter, narrow = outputs // 4, max(1, outputs // 6)
        self.branches = nn.ModuleList(
            [
                Convolution(inputs, quarter, 1),
                nn.Sequential(Convolution(inputs, narrow, 1), Convolution(narrow, quarter, 3)),
                nn.Sequential(
                    Convolution(inputs, narrow, 1),
                    Convolution(narrow, quarter, 3),
                    Convolution(quarter, quarter, 3),
                ),
                nn.Sequential(nn.AvgPool2d(3, 1, 1), Convolution(inputs, quarter, 1)),
            ]
        )

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        """Map (n, inputs, height, width) to (n, outputs, height, width)."""
        return torch.cat([branch(h) for branch in self.branches], 1)


class Inception(nn.Module):
    """Classify colour images: a stem that shrinks them 8 times, six blocks with two halvings, an
    average, a layer.

    It has the structure of the network in Ioffe and Szegedy (2015), with fewer blocks.

    Parameters
    ----------
    classes : int
    width : float
        Scales the number of feature maps; 1 gives 4.4 million parameters for 1,000 classes.

    Examples
    --------
    >>> Inception(classes=5, width=0.125)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 5])
    """

    def __init__(self, classes: int, width: float = 1.0) -> None:
        super().__init__()
        check.whole(classes, "classes")
        check.positive(width, "width")
        maps = [4 * max(1, round(m * width / 4)) for m in (64, 192, 256, 320, 480, 576, 640, 768)]
        stem = [Convolution(3, maps[0], 7, stride=2), nn.MaxPool2d(3, 2, 1)]
        stem += [Convolution(maps[0], maps[1], 3), nn.MaxPool2d(3, 2, 1)]
        blocks: list[nn.Module] = [Block(a, b) for a, b in pairwise(maps[1:])]
        for place in (4, 2):
            blocks.insert(place, nn.MaxPool2d(3, 2, 1))
        self.features = nn.Sequential(*stem, *blocks)
        self.classifier = nn.Linear(maps[-1], classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map images (n, 3, height, width) to pre-activations (n, classes)."""
        return self.classifier(self.features(x).mean((2, 3)))
