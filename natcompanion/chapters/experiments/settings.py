"""The base of every experiment's settings."""

from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base of every experiment's settings: a seed and a device; subclasses add their own fields
    with defaults.
    """

    seed: int = 0
    device: str = "cpu"

    def generator(self, offset: int = 0) -> torch.Generator:
        """Return a new random generator for this seed; another ``offset`` gives an independent
        stream.

        Streams of different seeds do not meet for offsets below 1000.
        """
        return torch.Generator(device=self.device).manual_seed(1000 * self.seed + offset)

    def plain(self) -> dict:
        """Return the settings as JSON has them (tuples become lists), without seed and device."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if key not in ("seed", "device")
        }
