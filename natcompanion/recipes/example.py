"""A folder of generated images, to try a recipe on."""

from pathlib import Path

import numpy as np
from PIL import Image


def example_folder(
    path: Path, *, classes: int = 4, images: int = 24, size: int = 40, seed: int = 0
) -> Path:
    """Write noisy images whose colour depends on the class to ``path/train/CLASS`` and
    ``path/val/CLASS``.

    ``images`` per class for training, a quarter of that for validation. Returns ``path``.

    Parameters
    ----------
    path : Path
    classes, images, size : int
        Number of classes, images for each, and their side in pixels.
    seed : int

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = example_folder(Path(name), classes=2, images=4)
    ...     len(list(folder.glob("train/*/*"))), len(list(folder.glob("val/*/*")))
    (8, 2)
    """
    random = np.random.default_rng(seed)
    colours = random.uniform(40, 215, (classes, 3))
    for part, count in (("train", images), ("val", max(1, images // 4))):
        for label, colour in enumerate(colours):
            folder = Path(path) / part / f"class{label}"
            folder.mkdir(parents=True, exist_ok=True)
            for k in range(count):
                pixels = colour + random.normal(0, 40, (size, size + 8, 3))
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{k}.png")
    return Path(path)
