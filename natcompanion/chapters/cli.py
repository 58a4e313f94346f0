"""The command ``natcompanion``: list, run and sweep experiments, verify and renew what is stored,
report on claims, check the environment.
"""

import argparse
import ast
import os
import platform
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from natcompanion.chapters import experiments, ledger
from natcompanion.chapters.experiments import (
    Interval,
    Result,
    interval,
    provenance,
    store,
    stored,
    sweeping,
    verifying,
)
from natcompanion.chapters.experiments.pool import Pool
from natcompanion.chapters.experiments.results import STATES, state
from natcompanion.data._store import cache_folder


def parse_seeds(text: str) -> list[int]:
    """Return the seeds of ``0:5`` (0 to 4) or ``0,3,7``."""
    try:
        if ":" in text:
            start, stop = map(int, text.split(":"))
            seeds = list(range(start, stop))
        else:
            seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds:
        raise ValueError(f"--seeds: expected 0:5 or 0,3,7, got {text!r}")
    return seeds


def parse_grid(pairs: list[str]) -> dict[str, list]:
    """Return the grid of ``rate=0.1,0.2`` and the like; values that are no Python literal are
    strings.
    """

    def literal(text: str) -> Any:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text

    grid = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not (key and equals and text):
            raise ValueError(f"--set: expected setting=value or setting=value,value, got {pair!r}")
        if key in ("seed", "device"):
            raise ValueError(
                f"--set {key}: use --seed (of run), --seeds (of sweep) or --device instead"
            )
        if key in grid:
            raise ValueError(f"--set {key}: given twice; several values are {key}=value,value")
        values = literal(text)
        grid[key] = (
            list(values)
            if isinstance(values, tuple)
            else [literal(part) for part in text.split(",")]
            if "," in text and not isinstance(values, list)
            else [values]
        )
    return grid


def check_device(device: str) -> None:
    """Raise ValueError if torch cannot use ``device`` here."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # the second from builds without CUDA
        raise ValueError(
            f"--device: expected one that torch {torch.__version__} can use here, such as "
            f"cpu, got {device!r}"
        ) from None


def brief(value: Any) -> str:
    """Return a value in one short line."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, dict)) and len(str(value)) > 70:
        return f"{type(value).__name__} of {len(value)}"
    return str(value)


def over_seeds(values: list) -> str | None:
    """Return the mean and interval of finite numbers, else None."""
    try:
        found: Interval = interval(values)
    except ValueError:
        return None
    return f"{found} (n = {found.n})"


def list_experiments(_: argparse.Namespace) -> int:
    """Print every experiment with its presets and first line."""
    for name in experiments.names():
        one = experiments.get(name)
        print(f"{name:<32} {','.join(one.presets):<12} {one.summary}")
    return 0


def run(options: argparse.Namespace) -> int:
    """Run an experiment once and print its values."""
    grid = parse_grid(options.set)
    if long := [key for key, values in grid.items() if len(values) > 1]:
        raise ValueError(f"--set {long[0]}: run takes one value; several are for sweep")
    overrides = {key: values[0] for key, values in grid.items()}
    check_device(options.device)
    result = experiments.run(
        options.name,
        options.preset,
        options.seed,
        options.device,
        threads=options.threads,
        **overrides,
    )
    for key, value in sorted(result.values.items()):
        print(f"{key:<32} {brief(value)}")
    print(
        f"{result.seconds} s on {result.device}, {result.threads} thread, torch "
        f"{result.versions['torch']}"
    )
    return 0


def sweep(options: argparse.Namespace) -> int:
    """Run seeds and grid points that are not stored yet, and store them."""
    if not options.scheduler:  # a cluster may have what this machine lacks
        check_device(options.device)
    results = experiments.sweep(
        options.name,
        options.preset,
        seeds=parse_seeds(options.seeds),
        grid=parse_grid(options.set),
        device=options.device,
        workers=options.workers,
        backend=options.backend,
        scheduler=options.scheduler,
        threads=options.threads,
        fresh=options.fresh,
        dirty=options.dirty,
        progress=not options.quiet,
    )
    print(f"{len(results)} records in {store.path_of(options.name, options.preset)}")
    for note in results.notes:
        print(f"note: {note}")
    return 0


def verify(options: argparse.Namespace) -> int:
    """Run stored records again and compare values and verdicts; exit code 1 if some disagree."""
    start, checks = time.monotonic(), []
    print(f"{'record':<52} {'stored':>8} {'now':>8}  comparison")
    for check in verifying.verify(
        options.names,
        sample=options.sample,
        seed=options.seed,
        budget=options.budget,
        packaged=options.packaged,
    ):
        name = f"{check.old.experiment}.{check.old.preset} seed {check.old.seed}"
        now = f"{check.new.seconds:.1f} s" if check.new else "-"
        print(f"{name:<52} {check.old.seconds:>6.1f} s {now:>8}  {check}", flush=True)
        checks.append(check)
    if options.learn:
        verifying.learn(checks)
    ran = [check for check in checks if not check.skipped]
    agree = sum(check.agrees for check in ran)
    left = f", {len(checks) - len(ran)} were not run" if len(ran) < len(checks) else ""
    print(f"{agree} of {len(ran)} agree{left}, {time.monotonic() - start:.0f} s")
    return 0 if agree == len(ran) else 1


def renew(options: argparse.Namespace) -> int:
    """Run stored records again that today's code did not make as they are, and replace them.

    Without names, files that hold legacy records alone are left: all of those take many hours.
    """
    for name, preset in verifying.chosen_files(options.names, None):
        states = set(map(state, store.read(name, preset)))  # load would refuse an edited one
        if not options.names and states <= {"current", "legacy"}:
            continue
        old, new = sweeping.renew(
            name,
            preset,
            pool=Pool(options.workers),
            dirty=options.dirty,
            progress=not options.quiet,
        )
        moved = [
            value
            for record in new
            for value in verifying.compare(
                old[record.identity],
                record,
                verifying.peers_of(record, old.values()),
                verifying.read_sets(),
            )
            if value.moved
        ]
        print(f"{name}.{preset}: {len(new)} records renewed, {len(moved)} of their values moved")
        for value in moved[:5]:
            print(f"  {value.key}: {value.moved}")
    return 0


def report(options: argparse.Namespace) -> int:
    """Print the stored values with their intervals, one block for each setting, and the verdicts of
    the claims.
    """
    for name, preset in stored():
        if options.paper and not name.startswith(f"{options.paper}_"):
            continue
        results = experiments.load(name, preset, allow_stale=True)
        groups = {record.identity[0]: record.settings for record in results}
        for note in results.notes:
            print(f"\n{name}.{preset}: note: {note}")
        for key, settings in groups.items():
            records = [record for record in results if record.identity[0] == key]
            print(f"\n{name}.{preset}: {len(records)} seeds, {settings}")
            for value in sorted(records[0].values):
                text = over_seeds(
                    [
                        record[value]
                        for record in records
                        if not isinstance(record[value], (list, dict))
                    ]
                )
                print(f"  {value:<32} {text or brief(records[0][value])}")
    print(f"\nClaims\n{ledger.report(options.paper)}")
    return 0


def check_results(name: str, preset: str) -> None:
    """Raise ValueError if a results file is damaged or its records have other settings than the
    experiment has now.
    """
    now = set(experiments.get(name).preset(preset).plain())
    for record in experiments.load(name, preset, allow_stale=True):
        if differ := sorted(now ^ set(record.settings)):
            raise ValueError(
                f"{name}.{preset}: stored with other settings ({', '.join(differ)}): sweep it again"
            )


def untrusted(name: str, preset: str) -> None:
    """Raise ValueError if records are stale, dirty or legacy."""
    states = experiments.load(name, preset, allow_stale=True).states
    bad: dict[str, int] = {
        kind: states[kind] for kind in ("stale", "dirty", "legacy") if kind in states
    }
    if bad:
        raise ValueError(
            f"{name}.{preset}: {sweeping.counted(bad)}; run them again from a commit: "
            f"natcompanion renew {name}.{preset}"
        )


def states(records: list[Result], unreadable: int) -> str:
    """Return how many stored records there are of each state, and how many unreadable files."""
    tally = Counter(map(state, records)) + Counter({"unreadable file": unreadable})
    order = [name for name in (*STATES, "unreadable file") if tally[name]]
    return ", ".join(f"{tally[name]} {name}" for name in order) or "none"


def unknown_commits(records: list[Result]) -> str:
    """Return how many records with a fingerprint name a commit that this history does not hold: a
    branch that was rebased after they were made, or somebody else's.
    """
    if (known := provenance.history()) is None:
        return "no whole history here to look the records' commits up in"
    named = [record.commit or "" for record in records if record.fingerprint]
    missing = sum(commit.partition("+")[0] not in known for commit in named)
    return f"{missing} of {len(named)} records name one that is not in this history"


def readable() -> tuple[list[Result], int]:
    """Return all stored records, and the number of files that cannot be read."""
    records, unreadable = [], 0
    for pair in stored():
        try:
            records += store.read(*pair)
        except ValueError:
            unreadable += 1
    return records, unreadable


def problems() -> list[str]:
    """Return what is wrong with the stored results and the ledgers."""
    checks: list[Callable] = [partial(ledger.load, name) for name in ledger.LEDGERS]
    checks += [partial(check_results, *pair) for pair in stored()]
    checks += [partial(untrusted, *pair) for pair in stored()]
    found = []
    for check in checks:
        try:
            check()
        except ValueError as error:
            found.append(str(error))
    if found:
        return found
    for claim in ledger.load("claims"):
        try:
            now = ledger.verdict(claim)
        except ValueError as error:
            found.append(str(error))
        else:
            if now != claim.verdict:
                found.append(
                    f"{claim.id}: the ledger says {claim.verdict!r}, the stored result {now!r}"
                )
    return found


def cache() -> str:
    """Return the folder of downloaded data, or why there is none."""
    try:
        return str(cache_folder())
    except RuntimeError as error:  # a user without a home, in a container
        return f"none: {error}; or set NATCOMPANION_CACHE"


def doctor(_: argparse.Namespace) -> int:
    """Print the state of the environment; exit code 1 if results or ledgers have problems."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    records, unreadable = readable()
    facts = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": gpu,
        "threads": f"{torch.get_num_threads()} of {experiments.default_workers()} cores",
        "data cache": cache(),
        "results": f"{experiments.results_folder()} ({len(stored())} files)",
        "records": states(records, unreadable),
        "commits": unknown_commits(records),
        "chromium": shutil.which("chromium")
        or shutil.which("chromium-browser")
        or "not found: page tests need it",
        "node": shutil.which("node") or "not found: the build takes it from PyPI",
    }
    for name, fact in facts.items():
        print(f"{name:<12} {fact}")
    found = problems()
    for problem in found:
        print(f"problem      {problem}")
    print("ledgers and results are in order" if not found else f"{len(found)} problems")
    return 1 if found else 0


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    top = argparse.ArgumentParser(
        prog="natcompanion", description="Experiments and ledgers of the book."
    )
    commands = top.add_subparsers(required=True, metavar="command")

    def add(function: Callable, name: str) -> argparse.ArgumentParser:
        summary = (function.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=summary, description=summary)
        command.set_defaults(function=function)
        return command

    def common(command: argparse.ArgumentParser) -> None:
        command.add_argument("name", help="the experiment")
        command.add_argument(
            "--preset", default="quick", help="quick (default) or another that the list shows"
        )
        command.add_argument(
            "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting"
        )
        command.add_argument("--device", default="cpu", help="torch device")
        command.add_argument("--threads", type=int, default=1, help="threads of each run")

    def named(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "names", nargs="*", metavar="NAME", help="experiment or experiment.preset (default all)"
        )

    def storing(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--dirty", action="store_true", help="store although the library is not committed"
        )
        command.add_argument("--quiet", action="store_true", help="no progress bar")

    add(list_experiments, "list")
    command = add(run, "run")
    common(command)
    command.add_argument("--seed", type=int, default=0)
    command = add(sweep, "sweep")
    common(command)
    command.add_argument(
        "--seeds",
        default="0:5",
        help="0:5 (default, means 0 to 4) or 0,3,7; --set KEY=V1,V2 is a grid",
    )
    command.add_argument("--workers", type=int, default=1, help="processes")
    command.add_argument("--backend", help="joblib backend: loky (default), threading, dask")
    command.add_argument("--scheduler", help="address of a dask scheduler")
    command.add_argument("--fresh", action="store_true", help="run again what is stored")
    storing(command)
    command = add(verify, "verify")
    named(command)
    command.add_argument("--sample", type=int, help="run so many of them, of many experiments")
    command.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    command.add_argument(
        "--budget", type=float, default=300.0, help="recorded seconds of a sample (default 300)"
    )
    command.add_argument(
        "--packaged", action="store_true", help="only data that packages ship: no download"
    )
    command.add_argument(
        "--learn",
        action="store_true",
        help="keep by how much this processor moves values; later runs allow that",
    )
    command = add(renew, "renew")
    named(command)
    command.add_argument("--workers", type=int, default=1, help="processes")
    storing(command)
    command = add(report, "report")
    command.add_argument(
        "paper", nargs="?", choices=list(ledger.PAPERS), help="one paper (default: all)"
    )
    add(doctor, "doctor")
    return top


class Terminated(KeyboardInterrupt):
    """SIGTERM: a batch system, or a shutdown, wants the command to end."""


@contextmanager
def ending_well() -> Iterator[None]:
    """End on SIGTERM as on Ctrl-C, so that the processes of a sweep end too."""

    def end(*_: object) -> None:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # signals reach the main thread only
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def open_streams() -> None:
    """Give closed output a place to go, and characters that a locale has not, a way to be shown."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")


def unread() -> bool:
    """Return whether nobody reads stdout any more; else it was another pipe that broke."""
    try:
        print(flush=True)
    except BrokenPipeError:
        return True
    return False


def complain(text: str) -> None:
    """Print a line on stderr, if somebody reads it."""
    try:
        print(f"natcompanion: {text}", file=sys.stderr, flush=True)
    except OSError:
        sweeping.drop(sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; an error is one line on stderr and exit code 2."""
    open_streams()
    options = parser().parse_args(arguments)
    try:
        with ending_well():
            code = options.function(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError as error:
        if unread():  # the reader has seen enough: list | head -1
            sweeping.drop(sys.stdout)
            return 0
        complain(f"a process that helped has ended ({error})")
        return 2
    except KeyboardInterrupt as stop:
        stores = hasattr(options, "dirty")
        complain("interrupted" + ("; what had finished is stored" if stores else ""))
        return 143 if isinstance(stop, Terminated) else 130
    except (ValueError, RuntimeError, OSError) as error:
        complain(" ".join(str(error).split()))
        return 2


if __name__ == "__main__":
    sys.exit(main())
