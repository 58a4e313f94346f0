"""Values as strict JSON, and the hash of a value."""

import hashlib
import json
import math
from typing import Any

import numpy as np
import torch

NOT_FINITE = "$float"


def plain(value: Any, where: str = "value") -> Any:
    """Return ``value`` as numbers, strings, booleans, None, lists and dicts; tensors and arrays
    become lists.

    Raises
    ------
    ValueError
        If some part is anything else, a complex number for example.
    """
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)):
        value = value.tolist()
    if isinstance(value, dict):
        if bad := [key for key in value if not isinstance(key, str) or key == NOT_FINITE]:
            raise ValueError(
                f"{where}: expected string keys other than {NOT_FINITE!r}, got {bad[0]!r}"
            )
        return {key: plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(
        f"{where}: expected numbers, strings, lists, dicts or tensors, got {type(value).__name__}"
    )


def dumps(value: Any, indent: str = "\n") -> str:
    """Return strict, stable JSON: sorted keys, one space of indent, a list of plain items on one
    line.

    JSON has no NaN and no infinity; they are written as ``{"$float": "nan"}``, ``"inf"`` or
    ``"-inf"``.
    :func:`loads` reads them back.
    """
    inner = indent + " "
    if isinstance(value, float) and not math.isfinite(value):
        return f'{{"{NOT_FINITE}": "{value}"}}'
    if isinstance(value, dict) and value:
        return (
            "{"
            + ",".join(f"{inner}{json.dumps(k)}: {dumps(value[k], inner)}" for k in sorted(value))
            + indent
            + "}"
        )
    if isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        return "[" + ",".join(inner + dumps(item, inner) for item in value) + indent + "]"
    if isinstance(value, list):
        return "[" + ", ".join(dumps(item) for item in value) + "]"
    return json.dumps(value, allow_nan=False)


def one_line(value: Any) -> str:
    """Return the JSON of :func:`dumps` on one line."""

    def strict(item: Any) -> Any:
        if isinstance(item, float) and not math.isfinite(item):
            return {NOT_FINITE: str(item)}
        if isinstance(item, dict):
            return {key: strict(inner) for key, inner in item.items()}
        return [strict(inner) for inner in item] if isinstance(item, list) else item

    return json.dumps(strict(value), sort_keys=True, allow_nan=False)


def loads(text: str) -> Any:
    """Return what :func:`dumps` or :func:`one_line` wrote."""

    def not_json(name: str) -> None:
        raise ValueError(f"{name} is not strict JSON")

    def revive(item: dict) -> Any:
        return float(item[NOT_FINITE]) if set(item) == {NOT_FINITE} else item

    return json.loads(text, object_hook=revive, parse_constant=not_json)


def digest(value: Any) -> str:
    """Return a hash of a plain value, 16 hexadecimal digits.

    Examples
    --------
    >>> digest({"a": 1.0, "b": [True]}) == digest({"b": [True], "a": 1.0})
    True
    >>> digest(1.0) == digest(1.0000000000000002)
    False
    """
    return hashlib.sha256(one_line(value).encode()).hexdigest()[:16]
