"""The schema of the ledgers: what an entry holds, and what makes it wrong."""

import re
from dataclasses import MISSING, dataclass, fields
from typing import Any

VERDICTS = ("reproduced", "partly", "undecided", "not reproduced", "not testable here")
STATUSES = ("verified", "verified with correction", "definition")
SEVERITIES = ("misprint", "ambiguous", "wrong", "garbled")


@dataclass(frozen=True)
class Paper:
    """A paper of the book; ``equations`` is the number of its numbered ones, once the ledger holds
    them all.
    """

    title: str
    authors: str
    year: str
    equations: int | None = None


PAPERS = {
    "whitening": Paper(
        "The Natural Gradient by Analogy to Signal Whitening", "Sohl-Dickstein", "2012", 45
    ),
    "revisiting": Paper(
        "Revisiting Natural Gradient for Deep Networks", "Pascanu and Bengio", "2013", 30
    ),
    "prong": Paper("Natural Neural Networks", "Desjardins et al.", "2015", 10),
    "rfim": Paper(
        "Relative Natural Gradient for Learning Large Complex Models", "Sun and Nielsen", "2016", 81
    ),
    "boltzmann": Paper("Natural Boltzmann Machines", "Millea", "undated", 4),
    "after": Paper("What Came After", "several authors", "2015 to 2026"),
}


class LedgerError(ValueError):
    """A ledger file or entry that does not follow the schema."""


def _one_of(entry: Any, name: str, allowed: tuple[str, ...]) -> None:
    if (value := getattr(entry, name)) not in allowed:
        raise LedgerError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def _text(entry: Any, *names: str, optional: bool = False) -> None:
    for name in names:
        value = getattr(entry, name)
        if not (isinstance(value, str) and value.strip()) and not (optional and value is None):
            raise LedgerError(
                f"{name}: expected some text{' or null' if optional else ''}, got {value!r}"
            )


def _node(entry: Any, name: str, optional: bool = False) -> None:
    value = getattr(entry, name)
    if value is None and optional:
        return
    if not (isinstance(value, str) and re.fullmatch(r"tests/[\w/]+\.py::\S.*", value)):
        raise LedgerError(
            f"{name}: expected a pytest node id such as tests/test_x.py::test_y, got {value!r}"
        )


def _section(entry: Any) -> None:
    """Check the anchor of a section; whether the chapter has it, the build finds out."""
    value = entry.section
    if value is not None and not (isinstance(value, str) and re.fullmatch(r"[a-z0-9-]+", value)):
        raise LedgerError(
            f"section: expected the anchor of a section, such as 1-3-connection, got {value!r}"
        )


def _absent(entry: Any, reason: str, *names: str) -> None:
    if extra := [name for name in names if getattr(entry, name) is not None]:
        raise LedgerError(f"{', '.join(extra)}: expected null, because {reason}")


@dataclass(frozen=True)
class Claim:
    """A claim of a paper and how it is settled: by a stored experiment, by a test, or not at all.

    With ``experiment`` (``name.preset``), ``measure`` and ``criterion`` give the verdict. With
    ``test``, the test asserts what ``verdict`` says. With neither, the verdict is ``not testable
    here``. Only an experiment can leave a claim ``undecided``. A claim that is not ``reproduced``
    has a ``note`` that says why. ``turns`` names moves that the bounds and leaving a unit out do
    not reach (another setting, another size), and the verdict that each leads to; of runs only.
    """

    id: str
    paper: str
    where: str
    claim: str
    paper_value: str | int | float | None
    verdict: str
    experiment: str | None = None
    measure: str | None = None
    criterion: dict[str, str] | None = None
    test: str | None = None
    unit: str | None = None
    note: str | None = None
    turns: dict[str, str] | None = None
    section: str | None = None

    def __post_init__(self) -> None:
        _one_of(self, "paper", tuple(PAPERS))
        _one_of(self, "verdict", VERDICTS)
        _text(self, "id", "where", "claim")
        _text(self, "experiment", "measure", "unit", "note", optional=True)
        _node(self, "test", optional=True)
        _section(self)
        if not re.fullmatch(rf"{self.paper}-[a-z0-9-]+", self.id):
            raise LedgerError(
                f"id: expected {self.paper}-… in lower case with hyphens, got {self.id!r}"
            )
        if self.verdict != "reproduced" and not self.note:
            raise LedgerError(f"note: expected the reason, because the verdict is {self.verdict!r}")
        self._check_evidence()
        self._check_turns()

    def _check_turns(self) -> None:
        if self.turns is None:
            return
        if not isinstance(self.turns, dict) or not self.turns:
            raise LedgerError(f"turns: expected moves and verdicts, got {self.turns!r}")
        for move, outcome in self.turns.items():
            if not (isinstance(move, str) and move.strip()):
                raise LedgerError(f"turns: expected a move in words, got {move!r}")
            if outcome == self.verdict or outcome not in VERDICTS[:-1]:
                raise LedgerError(f"turns: expected another verdict than its own, got {outcome!r}")

    def _check_evidence(self) -> None:
        if self.experiment is None:
            _absent(self, "there is no experiment", "measure", "criterion", "unit", "turns")
            if self.verdict == "undecided":
                raise LedgerError("verdict: only an interval of an experiment can be 'undecided'")
            if (self.test is None) != (self.verdict == "not testable here"):
                raise LedgerError(
                    "expected an experiment or a test, or else the verdict 'not testable here'"
                )
            return
        _absent(self, "there is an experiment", "test")
        _text(self, "measure")
        if self.verdict == "not testable here":
            raise LedgerError("verdict: 'not testable here' has no experiment")
        if not re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", self.experiment):
            raise LedgerError(f"experiment: expected name.preset, got {self.experiment!r}")
        rules = self.criterion
        if (
            not isinstance(rules, dict)
            or "reproduced" not in rules
            or set(rules) - {"reproduced", "partly"}
        ):
            raise LedgerError(
                f"criterion: expected the keys reproduced and perhaps partly, got {rules!r}"
            )
        if bad := [rule for rule in rules.values() if not isinstance(rule, str)]:
            raise LedgerError(f"criterion: expected expressions as text, got {bad[0]!r}")


@dataclass(frozen=True)
class Equation:
    """A numbered equation, the function that computes it and the test that binds them.

    ``formula`` is the equation in TeX, in its corrected form. ``function`` and ``test`` may be null
    for a ``definition`` only. ``correction`` says what is corrected. ``section`` is where its
    chapter shows it, if that cannot be read from the chapter; ``toward`` the number of the equation
    that it is a step towards, if the chapter shows only that.
    """

    paper: str
    number: int | str
    says: str
    status: str
    function: str | None
    test: str | None
    correction: str | None = None
    formula: str | None = None
    section: str | None = None
    toward: int | str | None = None

    def __post_init__(self) -> None:
        _one_of(self, "paper", tuple(PAPERS))
        _one_of(self, "status", STATUSES)
        _text(self, "says")
        _text(self, "function", "correction", "formula", optional=True)
        _node(self, "test", optional=self.status == "definition")
        _section(self)
        if self.toward is not None and (self.section or self.toward == self.number):
            raise LedgerError(f"toward: expected another equation and no section: {self.toward!r}")
        if isinstance(self.number, bool) or not isinstance(self.number, (int, str)):
            raise LedgerError(f"number: expected a number or a label, got {self.number!r}")
        if self.function is None and self.status != "definition":
            raise LedgerError(
                f"function: expected natcompanion.…, because the status is {self.status!r}"
            )
        if self.function is not None and not re.fullmatch(r"natcompanion(\.\w+)+", self.function):
            raise LedgerError(
                f"function: expected a dotted path natcompanion.…, got {self.function!r}"
            )
        if (self.status == "verified with correction") != (self.correction is not None):
            raise LedgerError(
                "correction: expected for the status 'verified with correction', and only there"
            )

    @property
    def id(self) -> str:
        """Paper and number."""
        return f"{self.paper} {self.number}"


@dataclass(frozen=True)
class Erratum:
    """A place where a paper as printed is wrong, ambiguous or garbled.

    ``evidence`` is a test that fails for the printed form and passes for the right one; ``section``
    is where the chapter speaks of it, if that cannot be read from the chapter.
    """

    paper: str
    where: str
    printed: str
    right: str
    evidence: str
    severity: str
    note: str | None = None
    section: str | None = None

    def __post_init__(self) -> None:
        _one_of(self, "paper", tuple(PAPERS))
        _one_of(self, "severity", SEVERITIES)
        _text(self, "where", "printed", "right")
        _text(self, "note", optional=True)
        _node(self, "evidence")
        _section(self)

    @property
    def id(self) -> str:
        """Paper, place and the printed form."""
        return f"{self.paper} {self.where}: {self.printed}"


LEDGERS = {"claims": Claim, "equations": Equation, "errata": Erratum}
Entry = Claim | Equation | Erratum


def build(kind: type[Entry], entry: Any) -> Entry:
    """Return the checked entry of one ledger."""
    if not isinstance(entry, dict):
        raise LedgerError(f"expected keys and values, got {entry!r}")
    known = {field.name: field.default is MISSING for field in fields(kind)}
    if unknown := [str(key) for key in entry if key not in known]:
        raise LedgerError(f"unknown key {', '.join(unknown)}; the keys are {', '.join(known)}")
    if missing := [key for key, required in known.items() if required and key not in entry]:
        raise LedgerError(f"missing key {', '.join(missing)}")
    return kind(**entry)
