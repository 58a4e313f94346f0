"""The colours of all frames: one palette, so that a thing keeps its colour while a slider moves."""

import itertools

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from natcompanion.chapters.figures.style import COLOURS, SHADES, STATUS

GREYS = 21  # black to white in steps of 0.05, so that "0.55" and the like are exact
TINTS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0)  # towards white: bands, and the edges of lines
DARK = (1 / 3, 2 / 3)  # towards black: where a line crosses a black one
MAPS = {"viridis": 24, "RdBu": 41}  # colour maps of the figures; "gray" is the ramp of greys
CHROMA = 1.5  # how much more a difference of hue counts than one of lightness


def _palette() -> np.ndarray:
    """Return the palette (n, 3) as bytes, at most 256 colours."""
    white, colours = np.ones(3), [np.array(to_rgb(colour)) for colour in COLOURS]
    shares = [np.repeat(k / (GREYS - 1), 3) for k in range(GREYS)]
    shares += [white + (colour - white) * tint for colour in colours for tint in TINTS]
    shares += [colour * dark for colour in colours for dark in DARK]
    shares += [(one + other) / 2 for one, other in itertools.combinations(colours, 2)]
    shares += [np.array(to_rgb(colour)) for colour in (*SHADES, *STATUS)]
    for name, count in MAPS.items():
        shares += list(matplotlib.colormaps[name](np.linspace(0, 1, count))[:, :3])
    return np.unique((255 * np.array(shares) + 0.5).astype(np.uint8), axis=0)  # as Agg rounds


PALETTE = _palette()
_GREY = np.flatnonzero(np.ptp(PALETTE, axis=1) == 0)


def _opponents(colours: np.ndarray) -> np.ndarray:
    """Return lightness and two differences of colour, which nearness is measured by."""
    light = colours @ [0.299, 0.587, 0.114]
    blue, red = 0.564 * (colours[:, 2] - light), 0.713 * (colours[:, 0] - light)
    return np.stack([light, CHROMA * blue, CHROMA * red], axis=1)


_PLACES = _opponents(PALETTE.astype(float))


def nearest(colours: np.ndarray) -> np.ndarray:
    """Return the place in `PALETTE` of the nearest colour to each of (n, 3) bytes; a grey stays a
    grey.
    """
    given = colours.astype(float)
    at = _opponents(given)
    found = (np.square(_PLACES).sum(1) - 2 * at @ _PLACES.T).argmin(1)
    grey = np.ptp(given, axis=1) == 0
    found[grey] = _GREY[np.abs(given[grey, :1] - PALETTE[_GREY, 0]).argmin(1)]
    return found.astype(np.uint8)


def indexed(image: Image.Image) -> Image.Image:
    """Return an image in the colours of `PALETTE`, without dithering."""
    pixels = np.asarray(image.convert("RGB")).astype(np.uint32)
    packed = pixels[..., 0] << 16 | pixels[..., 1] << 8 | pixels[..., 2]
    codes, place = np.unique(packed, return_inverse=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    found = Image.fromarray(nearest(colours)[place].reshape(packed.shape))
    found.putpalette(PALETTE.tobytes())
    return found
