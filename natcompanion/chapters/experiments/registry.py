"""Which experiments exist: settings, presets and the function that runs them."""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

from .encoding import plain
from .fingerprint import fingerprint
from .settings import Settings


@dataclass(frozen=True)
class Experiment:
    """A registered experiment."""

    name: str
    function: Callable[[Settings], dict]
    presets: dict[str, Settings]

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.function.__doc__ or "").strip().partition("\n")[0]

    @property
    def fingerprint(self) -> str:
        """The hash of the code that a run executes."""
        settings: Any = type(next(iter(self.presets.values())))
        return fingerprint(self.function, settings)

    def preset(self, preset: str) -> Settings:
        """Return the settings of a preset."""
        if preset not in self.presets:
            raise ValueError(
                f"{self.name}: no preset {preset!r}; there are {', '.join(self.presets)}"
            )
        return self.presets[preset]

    def settings(self, preset: str, overrides: dict) -> Settings:
        """Return the settings of a preset with some fields replaced, each checked against its
        default's type.
        """
        base = self.preset(preset)
        known = [field.name for field in fields(base)]
        if unknown := sorted(set(overrides) - set(known)):
            raise ValueError(
                f"{self.name}: no setting {', '.join(unknown)}; there are {', '.join(known)}"
            )
        values = {key: plain(new, f"{self.name}: setting {key}") for key, new in overrides.items()}
        return replace(
            base,
            **{key: _typed(self.name, key, getattr(base, key), new) for key, new in values.items()},
        )


def _typed(name: str, key: str, default: Any, new: Any) -> Any:
    """Return ``new`` in the type of ``default``; an int may stand for a float and a list for a
    tuple.
    """
    if isinstance(default, float) and isinstance(new, int) and not isinstance(new, bool):
        return float(new)
    if isinstance(new, list) and (default is None or isinstance(default, tuple)):
        return _tuples(new)
    if default is not None and type(new) is not type(default):
        raise ValueError(f"{name}: setting {key} expected {type(default).__name__}, got {new!r}")
    return new


def _tuples(value: Any) -> Any:
    """Return lists as tuples, inner ones too."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_REGISTRY: dict[str, Experiment] = {}


def experiment(name: str, *, quick: Settings, **presets: Settings) -> Callable:
    """Register a function of a frozen dataclass of settings as the experiment ``name``.

    The function takes the settings alone, uses no globals, and returns a dict of numbers, strings,
    booleans, None, and lists, dicts or tensors of these. Its docstring's first line is the
    description in ``natcompanion list``. The decorator gives back the function itself.

    Parameters
    ----------
    name
        Words joined by ``_``, starting with the paper's key, such as ``whitening_figure1``.
    quick
        Settings that run in seconds.
    **presets
        More settings by preset name; ``paper=`` for the paper's own sizes.

    Raises
    ------
    ValueError
        If the name is taken or malformed, or the settings are not one frozen subclass of
        :class:`Settings`.
    """
    presets = {"quick": quick, **presets}
    if not (name.isidentifier() and name == name.lower()):
        raise ValueError(f"experiment name: expected lower-case words joined by _, got {name!r}")
    for settings in presets.values():
        parameters: Any = getattr(settings, "__dataclass_params__", None)
        frozen = parameters is not None and parameters.frozen
        if not (isinstance(settings, Settings) and frozen and type(settings) is type(quick)):
            raise ValueError(
                f"{name}: expected settings of one frozen dataclass that extends Settings, "
                f"got {settings!r}"
            )

    def register(function: Callable[[Settings], dict]) -> Callable[[Settings], dict]:
        old = _REGISTRY.get(name)
        if old and (old.function.__module__, old.function.__qualname__) != (
            function.__module__,
            function.__qualname__,
        ):
            raise ValueError(
                f"experiment {name!r} is registered already, by {old.function.__module__}"
            )
        _REGISTRY[name] = Experiment(name, function, presets)
        return function

    return register


@cache
def _import_all() -> None:
    """Import every module of this package, so that each registers its experiments."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__package__}.{module.name}")


def names() -> list[str]:
    """Return the names of all experiments, sorted."""
    _import_all()
    return sorted(_REGISTRY)


def get(name: str) -> Experiment:
    """Return one experiment; ValueError lists the names if there is none of that name."""
    if name not in names():
        raise ValueError(f"no experiment {name!r}; there are {', '.join(names()) or 'none'}")
    return _REGISTRY[name]
