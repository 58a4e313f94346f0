"""What every declared figure draws at its start, as data, and what its text says there and where
its controls end: ``tests/chapters/drawn/*.json``.

A test draws the figures again and names what moved: a curve that stands for another, a line of
another width, a value. After a change that is meant, write them anew, and look at what changed:

    python tools/drawn.py              # every figure
    python tools/drawn.py rfim prong   # those of some chapters

A figure whose data are computed by a training while it is drawn may differ by a spread, which
stands in ``SPREADS``.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import Collection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from natcompanion.chapters import figures
from natcompanion.chapters.figures.drawing import Drawing, declared
from natcompanion.chapters.regression import EXACT, compare

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "chapters" / "drawn"
SPREADS = {
    **{f"knobs.{name}": 0.02 for name in ("PRONG", "RNGD", "DAMPING", "SCHEME", "LEARNED")},
    "revisiting.SOLVERS": 0.05,  # conjugate gradients diverge where rounding decides
}
"""Relative spread of the data of a figure, by its name, where it is more than ``EXACT``."""

PLACES = ("first", "middle", "last", "mean", "largest")


def drawings() -> dict[str, Drawing]:
    """Return every declared figure as ``chapter.NAME``."""
    names = [module.name for module in pkgutil.iter_modules(figures.__path__)]
    modules = {name: importlib.import_module(f"{figures.__name__}.{name}") for name in names}
    return {f"{name}.{key}": it for name in names for key, it in declared(modules[name]).items()}


def start(drawing: Drawing) -> dict[str, Any]:
    """Return the values at which the controls of a figure stand first."""
    grid = {name: next(iter(values)) for name, values in drawing.grid.items()}
    live = {name: given[0] for name, given in drawing.ranges.items() if not drawing.grid}
    return {**live, **grid, **{k: v for k, v in drawing.start.items() if k in {**live, **grid}}}


def end(drawing: Drawing) -> dict[str, Any]:
    """Return the last value of every slider."""
    return start(drawing) | {name: list(values)[-1] for name, values in drawing.grid.items()}


def shown(name: str, drawing: Drawing) -> dict[str, dict[str, Any]]:
    """Return what a figure draws, and what its text says: of one that trains, at its start only."""
    points = [start(drawing)] if name in SPREADS else [start(drawing), end(drawing)]
    said = {"texts": [drawing.describe(**point) for point in points]}
    return {**fingerprint(drawing.draw(**points[0])), "said": said}


def fingerprint(figure: Figure) -> dict[str, dict[str, Any]]:
    """Return what a figure shows: by axes and artist, its style and a summary of its data."""
    shown: dict[str, dict[str, Any]] = {}
    for number, axes in enumerate(figure.axes, start=1):
        place = f"axes {number}"
        shown[place] = _labels(axes)
        for kind, artists in _artists(axes).items():
            for count, artist in enumerate(artists, start=1):
                shown[f"{place}, {kind} {count}"] = artist
    words = [text.get_text() for text in figure.texts]
    return {**shown, "words": {"texts": words}} if any(words) else shown


def _labels(axes: Axes) -> dict[str, Any]:
    """Return the words of one set of axes: titles, names of ticks, legend, texts."""
    ticks = [
        [label.get_text() for label in axis.get_ticklabels()]
        for axis in (axes.xaxis, axes.yaxis)
        if isinstance(axis.get_major_locator(), FixedLocator)
    ]
    legend = axes.get_legend()
    entries = zip(legend.get_texts(), legend.legend_handles, strict=True) if legend else ()
    found = {
        "title": axes.get_title(),
        "names": [axes.get_xlabel(), axes.get_ylabel()],
        "scales": [axes.get_xscale(), axes.get_yscale()],
        "ticks": ticks,
        "legend": [f"{text.get_text()}: {_style(handle)}" for text, handle in entries],
        "texts": [text.get_text() for text in axes.texts],
    }
    return {key: value for key, value in found.items() if value}


def _artists(axes: Axes) -> dict[str, list[dict[str, Any]]]:
    """Return the artists that hold data, by kind."""
    colours = {to_hex(patch.get_facecolor(), keep_alpha=True): None for patch in axes.patches}
    return {
        "line": [_artist(line, _visible(axes, line)) for line in axes.lines],
        "collection": [_artist(item, _collected(item)) for item in axes.collections],
        "image": [
            {"map": image.get_cmap().name, "limits": _numbers(image.get_clim())}
            | _summary(np.ma.filled(image.get_array().astype(float), np.nan).reshape(-1, 1))
            for image in axes.images
        ],
        "bars": [
            {"colour": colour}
            | _summary(
                np.array(
                    [
                        patch.get_path().get_extents(patch.get_patch_transform()).bounds
                        for patch in axes.patches
                        if to_hex(patch.get_facecolor(), keep_alpha=True) == colour
                    ]
                )
            )
            for colour in colours
        ],
    }


def _visible(axes: Axes, line: Any) -> np.ndarray:
    """Return the points of a line; what lies beyond the axes counts as their edge."""
    data = np.asarray(line.get_xydata(), float)
    if line.get_transform() != axes.transData:
        return data
    low, high = np.sort(np.array([axes.get_xlim(), axes.get_ylim()]), axis=1).T
    return np.clip(data, low, high)


def _collected(item: Collection) -> np.ndarray:
    """Return the data of a collection: levels of contours, arrows, points, or outlines."""
    if hasattr(item, "levels"):
        return np.asarray(item.levels, float)[:, None]
    if hasattr(item, "U"):
        return np.column_stack([np.ravel(x) for x in (item.X, item.Y, item.U, item.V)])
    offsets = np.ma.filled(np.ma.asarray(item.get_offsets(), float), np.nan)
    if len(offsets) > 1 or np.any(offsets):
        return offsets
    if item.get_array() is not None:
        return np.ma.filled(np.ma.ravel(item.get_array()).astype(float), np.nan)[:, None]
    outlines = [path.vertices for path in item.get_paths()]
    return np.concatenate(outlines) if outlines else np.zeros((0, 2))


def _artist(artist: Any, data: np.ndarray) -> dict[str, Any]:
    label = str(artist.get_label())
    named = {} if label.startswith("_") else {"label": label}
    return {**named, "style": _style(artist), **_summary(data)}


def _style(artist: Any) -> str:
    """Return colour, width, dash and marker of an artist, as far as it has them."""
    parts = []
    for name in ("color", "facecolor", "edgecolor"):
        if hasattr(artist, f"get_{name}"):
            given = getattr(artist, f"get_{name}")()
            colours = [given] if isinstance(given, (str, tuple)) else list(np.atleast_2d(given))
            names = [to_hex(colour, keep_alpha=True) for colour in colours if len(colour)]
            parts.append("-".join(dict.fromkeys([*names[:1], *names[-1:]])))
    if hasattr(artist, "get_linewidth"):
        parts.append(f"width {np.ravel(artist.get_linewidth())[:1].tolist()}")
    if hasattr(artist, "get_marker"):
        parts.append(f"{artist.get_linestyle()} {artist.get_marker()}")
    return " ".join(parts)


def _summary(data: np.ndarray) -> dict[str, Any]:
    """Return how many points there are, and some of them: rows of an (n, k) array."""
    finite = data[np.isfinite(data).all(axis=1)]
    if not len(finite):
        return {"points": len(data)}
    rows = [finite[0], finite[len(finite) // 2], finite[-1], finite.mean(0), np.abs(finite).max(0)]
    values = {name: _numbers(row) for name, row in zip(PLACES, rows, strict=True)}
    return {"points": len(data), "finite": len(finite), **values}


def _numbers(values: Iterable[float]) -> list[float]:
    return [float(f"{value:.9g}") for value in values]


def differences(
    stored: Mapping[str, Mapping], today: Mapping[str, Mapping], spread: float = EXACT
) -> Iterator[str]:
    """Yield a line for each thing that moved between two fingerprints of one figure."""
    for place in dict.fromkeys([*stored, *today]):
        one, other = stored.get(place), today.get(place)
        if one is None or other is None:
            yield f"{place} is {'new' if one is None else 'gone'}"
            continue
        name = f"{place} {one['label']!r}" if "label" in one else place
        scale = np.maximum(one.get("largest", 0), 1e-300)
        for key in dict.fromkeys([*one, *other]):
            before, now = one.get(key), other.get(key)
            if not _same(key, before, now, scale, spread):
                yield f"{name}: {key} was {before}, is {now}"


def _same(key: str, one: Any, other: Any, scale: np.ndarray, spread: float) -> bool:
    if one is None or other is None or key not in (*PLACES, "limits", "texts", "title"):
        return one == other
    if key in ("texts", "title"):
        words = [{"text": "\n".join([text] if key == "title" else text)} for text in (one, other)]
        printed = [{**text, "output_type": "stream", "name": key} for text in words]
        return not list(compare(printed[:1], printed[1:], spread if spread > EXACT else None))
    allowed = spread * (np.abs(one) if key == "limits" else scale)
    return len(one) == len(other) and bool((np.abs(np.subtract(one, other)) <= allowed).all())


def stored() -> dict[str, dict]:
    """Return the fingerprints in the files."""
    files = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    return {f"{chapter}.{name}": it for chapter in files for name, it in files[chapter].items()}


def write(chapter: str) -> int:
    """Write the fingerprints of one chapter's figures, and return how many there are."""
    known = {name: it for name, it in sorted(drawings().items()) if owns(chapter, name)}
    found = {name.partition(".")[2]: shown(name, it) for name, it in known.items()}
    path = FOLDER / f"{chapter}.json"
    if found:
        path.parent.mkdir(exist_ok=True)
        path.write_text(_text(found))
    else:
        path.unlink(missing_ok=True)
    return len(found)


def _text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return fingerprints as JSON with a line for each artist, so that a change reads as one."""
    blocks = []
    for name, shown in found.items():
        lines = [f"  {_json(place)}: {_json(artist)}" for place, artist in shown.items()]
        blocks.append(f" {_json(name)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def owns(chapter: str, name: str) -> bool:
    """Return whether ``chapter.NAME`` is a figure of this chapter."""
    return name.partition(".")[0] == chapter


if __name__ == "__main__":
    chapters = sys.argv[1:] or [module.name for module in pkgutil.iter_modules(figures.__path__)]
    print(", ".join(f"{chapter}: {write(chapter)} figures" for chapter in chapters))
