"""natcompanion: five papers on the natural gradient, made to run."""

__version__ = "0.1.0"
