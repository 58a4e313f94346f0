"""The command ``natcompanion``: it serves the book, and says so where the book's extra is
missing.
"""

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; exit code 2 and one line on stderr if it cannot run here."""
    try:
        from natcompanion.chapters.cli import main as run
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("natcompanion"):
            raise
        print(
            f"natcompanion: the command needs {missing.name}: pip install 'natcompanion[book]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:  # while torch is imported, which takes seconds
        print("natcompanion: interrupted", file=sys.stderr)
        return 130
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
