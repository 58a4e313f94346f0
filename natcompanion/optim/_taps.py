"""How an optimizer watches the passes of a layer without being kept alive by it."""

import weakref
from typing import Any


class Tap:
    """The hooks of one layer, which show an optimizer what passes through. It does not keep the
    optimizer alive, and a copy of it is blind.
    """

    def __init__(self, optimizer: Any = None, name: str = "") -> None:
        self.optimizer = (lambda: None) if optimizer is None else weakref.ref(optimizer)
        self.name = name

    def __reduce__(self) -> tuple:
        return type(self), ()
