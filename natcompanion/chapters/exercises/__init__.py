"""Exercises whose starter says "not yet" until the reader's answer has the property asked for.

One module per chapter holds the judges: functions of the reader's answers that return an empty
text where they are right, and otherwise what is off, without giving the answer away.
"""

from collections.abc import Callable
from typing import Any


def check(judge: Callable[..., str], *answers: Any) -> None:
    """Print whether the answers to an exercise are right; three dots are an answer not yet given.

    Parameters
    ----------
    judge : callable
        Takes the answers and returns what is off, or an empty text.
    *answers : object

    Examples
    --------
    >>> def even(number):
    ...     return f"{number} is odd" if number % 2 else ""
    >>> check(even, ...)
    Not yet: put your answer in place of the dots.
    >>> check(even, 3)
    Not yet: 3 is odd.
    >>> check(even, 4)
    Yes.
    """
    if any(answer is ... for answer in answers):
        print("Not yet: put your answer in place of the dots.")
    else:
        off = judge(*answers)
        print(f"Not yet: {off}." if off else "Yes.")
