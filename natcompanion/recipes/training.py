"""Training an Inception network on folders of images with PRONG, in one process or several."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader

from natcompanion import _checks as check
from natcompanion import _distributed
from natcompanion.optim import PRONG
from natcompanion.recipes.images import Images
from natcompanion.recipes.inception import Inception

Batch = list[tuple[int, int]]
FREE = (
    "output",
    "steps",
    "epochs",
    "workers",
    "checkpoint_every",
    "device",
)  # may change on resuming


@dataclass(frozen=True)
class Settings:
    """What a run needs to know.

    Parameters
    ----------
    folder, output : Path
    size, width
        Side of the images in pixels; width of the network.
    batch : int
        Images per update, over all processes.
    epochs, steps
        Passes over the training images; stop after this many updates, if that is earlier.
    lr, momentum, weight_decay, eps, period, sample_size
        Of the optimizer; ``sample_size`` training images, cropped at random, give the statistics.
    evaluate_every, patience, factor
        After every so many updates the validation error is measured; after ``patience``
        measurements without a new best one, the step size is multiplied by ``factor`` (the paper's
        waterfall).
    checkpoint_every, workers, seed, device

    Raises
    ------
    ValueError
        On numbers out of range.

    Examples
    --------
    >>> Settings(Path("images"), Path("run"), lr=0.1).period  # updates between renewals
    500
    """

    folder: Path
    output: Path
    size: int = 224
    width: float = 1.0
    batch: int = 256
    epochs: int = 60
    steps: int | None = None
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 0.0
    eps: float = 0.1
    period: int = 500
    sample_size: int = 2048
    evaluate_every: int = 5000
    patience: int = 3
    factor: float = 0.1
    checkpoint_every: int = 1000
    workers: int = 0
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name in ("folder", "output"):
            object.__setattr__(self, name, Path(getattr(self, name)))
        for name in ("size", "epochs", "steps", "evaluate_every", "patience", "checkpoint_every"):
            if name != "steps" or self.steps is not None:
                check.whole(getattr(self, name), name)
        check.positive(self.width, "width")
        if not 0 < self.factor < 1:
            raise ValueError(f"factor: expected a number between 0 and 1, got {self.factor!r}")


def batches(settings: Settings, count: int, epoch: int) -> list[Batch]:
    """Return the images of this process for each update of an epoch; the last ones that fill no
    batch are left out.
    """
    g = torch.Generator().manual_seed(settings.seed + 1_000_003 * epoch)
    order = torch.randperm(count, generator=g)[: count - count % settings.batch]
    return [share([(epoch, int(i)) for i in part]) for part in order.split(settings.batch)]


def share(items: Batch) -> Batch:
    """Return the part of this process."""
    return items[_distributed.rank() :: _distributed.world_size()]


def check_sizes(settings: Settings, images: int) -> None:
    """Raise if an update would use more images than there are, or leave a process without any."""
    fewest = _distributed.world_size()
    if not fewest <= settings.batch <= images:
        raise ValueError(
            f"batch: expected {fewest} (processes) to {images} (images), got {settings.batch}"
        )
    if settings.sample_size < fewest:
        raise ValueError(
            f"sample_size: expected at least {fewest} (processes), got {settings.sample_size}"
        )


class Trainer:
    """A network, its optimizer, and where they stand."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.step = settings, 0
        self.device = torch.device(settings.device)
        self.train_set = Images(
            settings.folder / "train", settings.size, augment=True, seed=settings.seed
        )
        self.val_set = Images(settings.folder / "val", settings.size)
        if self.train_set.classes != self.val_set.classes:
            differing = sorted(set(self.train_set.classes) ^ set(self.val_set.classes))
            raise ValueError(
                "folder: expected the same classes in train and val, but "
                f"{', '.join(differing)} is in one only; "
                "an empty folder will do"
            )
        check_sizes(settings, len(self.train_set))
        torch.manual_seed(settings.seed)
        self.model = Inception(len(self.train_set.classes), settings.width).to(self.device)
        self.optimizer = PRONG(
            self.model,
            settings.lr,
            settings.momentum,
            weight_decay=settings.weight_decay,
            eps=settings.eps,
            period=settings.period,
            sample=self.sample,
        )
        self.waterfall = ReduceLROnPlateau(
            self.optimizer, factor=settings.factor, patience=settings.patience - 1, threshold=0
        )

    def load(self, data: Images, parts: list[Batch]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Read batches of images."""
        for x, t in DataLoader(data, batch_sampler=parts, num_workers=self.settings.workers):
            yield x.to(self.device), t.to(self.device)

    def sample(self) -> Iterator[torch.Tensor]:
        """Draw the part of this process of the images for the statistics, cropped at random."""
        g = torch.Generator().manual_seed(self.settings.seed + 7_000_003 * (self.step + 1))
        drawn = torch.randint(
            len(self.train_set), (self.settings.sample_size,), generator=g
        ).tolist()
        mine = share([(-1 - self.step, i) for i in drawn])
        parts = [
            mine[k : k + self.settings.batch] for k in range(0, len(mine), self.settings.batch)
        ]
        return (x for x, _ in self.load(self.train_set, parts))

    def update(self, x: torch.Tensor, t: torch.Tensor) -> float:
        """Make one step and return the mean loss over the images of all processes."""
        self.model.train()
        self.optimizer.zero_grad()
        part = cross_entropy(self.model(x), t, reduction="sum") / self.settings.batch
        total = part.detach().double()
        _distributed.reduce_sum([total])
        if not torch.isfinite(total):
            raise ValueError(
                f"update {self.step + 1}: the loss is {float(total)}; lower lr or raise eps"
            )
        (part * _distributed.world_size()).backward()
        self.optimizer.step()
        _distributed.reduce_mean([b for b in self.model.buffers() if b.is_floating_point()])
        self.step += 1
        return float(total)

    @torch.no_grad()
    def error(self) -> float:
        """Return the share of validation images that are classified wrongly."""
        self.model.eval()
        items = share([(0, i) for i in range(len(self.val_set))])
        parts = [
            items[k : k + self.settings.batch] for k in range(0, len(items), self.settings.batch)
        ]
        wrong = torch.zeros((), dtype=torch.float64, device=self.device)
        for x, t in self.load(self.val_set, parts):
            wrong += (self.model(x).argmax(1) != t).sum()
        _distributed.reduce_sum([wrong])
        return float(wrong) / len(self.val_set)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on."""
        kept = {key: str(value) for key, value in asdict(self.settings).items() if key not in FREE}
        parts = {
            key: getattr(self, key).state_dict() for key in ("model", "optimizer", "waterfall")
        }
        return {"step": self.step, "settings": kept, **parts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state from :meth:`state_dict`, if it is one of the same run."""
        own = self.state_dict()["settings"]
        if changed := [key for key, value in own.items() if state["settings"].get(key) != value]:
            raise ValueError(
                "output: expected a checkpoint of the same run, got one that differs in "
                f"{', '.join(changed)}; "
                "name another output, or remove the checkpoint"
            )
        for key in ("model", "optimizer", "waterfall"):
            getattr(self, key).load_state_dict(state[key])
        self.step = state["step"]


def train(settings: Settings) -> dict[str, Any]:
    """Train, or go on, and return the last step, its loss, and the last validation error.

    Parameters
    ----------
    settings : Settings

    Raises
    ------
    ValueError
        On a folder or settings that do not fit; if the loss is not finite.

    Examples
    --------
    >>> import tempfile
    >>> from natcompanion.recipes import example_folder
    >>> with tempfile.TemporaryDirectory() as name:
    ...     folder = example_folder(Path(name) / "images", classes=2, images=4)
    ...     small = {"size": 32, "width": 0.125, "batch": 4, "steps": 1, "sample_size": 4}
    ...     train(Settings(folder, Path(name) / "run", **small))["step"]
    1
    """
    trainer, checkpoint = Trainer(settings), settings.output / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load_state_dict(
            torch.load(checkpoint, map_location=trainer.device, weights_only=True)
        )
    log = Log(settings.output / "log.jsonl", trainer.step)
    per_epoch = len(trainer.train_set) // settings.batch
    total = min(settings.epochs * per_epoch, settings.steps or settings.epochs * per_epoch)
    while trainer.step < total:
        epoch, done = divmod(trainer.step, per_epoch)
        parts = batches(settings, len(trainer.train_set), epoch)[done : done + total - trainer.step]
        for x, t in trainer.load(trainer.train_set, parts):
            lr = trainer.optimizer.param_groups[0]["lr"]
            log.write(step=trainer.step, lr=lr, loss=trainer.update(x, t))
            if trainer.step % settings.evaluate_every == 0:
                error = trainer.error()
                trainer.waterfall.step(error)
                log.write(step=trainer.step - 1, error=error)
            if trainer.step % settings.checkpoint_every == 0 or trainer.step == total:
                save(trainer.state_dict(), checkpoint)
    return {"step": trainer.step, "loss": log.last.get("loss"), "error": log.last.get("error")}


class Log:
    """Lines of JSON, written by the first process; lines from ``step`` on, of an earlier run, are
    dropped.
    """

    def __init__(self, path: Path, step: int) -> None:
        self.path, self.last, self.first = path, {}, _distributed.rank() == 0
        if not self.first:
            return
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [
            line for line in lines if line.endswith("}") and json.loads(line)["step"] < step
        ]  # none cut off
        for line in kept:
            self.last.update(json.loads(line))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in kept))

    def write(self, **values: float) -> None:
        """Add one line."""
        self.last.update(values)
        if self.first:
            with self.path.open("a") as file:
                file.write(json.dumps(values) + "\n")


def save(state: dict[str, Any], path: Path) -> None:
    """Write a checkpoint from the first process, and wait for it; a reader sees the old one or the
    new one.
    """
    if _distributed.rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(state, path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)
    _distributed.reduce_sum([torch.zeros(1)])
