"""The image-folder recipe on a generated folder, and the arithmetic of what a run costs."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch
from _states import equal
from PIL import Image
from torch import nn

from natcompanion.layers import whiten_model
from natcompanion.recipes import (
    Images,
    Inception,
    Settings,
    example_folder,
    train,
    training_cost,
    work_per_image,
)
from natcompanion.recipes.imagefolder import main, processes
from natcompanion.recipes.images import central_box, random_box
from natcompanion.recipes.training import Trainer, batches

TINY = {
    "size": 20,
    "width": 0.06,
    "batch": 16,
    "epochs": 9,
    "steps": 6,
    "period": 3,
    "sample_size": 24,
    "evaluate_every": 2,
    "checkpoint_every": 100,
    "lr": 0.03,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return example_folder(tmp_path_factory.mktemp("images"))


def settings(folder, output, **changes):
    return Settings(folder, output, **{**TINY, **changes})


def checkpoint(path):
    return torch.load(path / "checkpoint.pt", weights_only=True)


# ---- Training


def losses(path):
    lines = map(json.loads, (path / "log.jsonl").read_text().splitlines())
    return [entry["loss"] for entry in lines if "loss" in entry]


def test_the_loss_falls(folder, tmp_path):
    """To less than a hundredth, with any seed; ten noisy steps would not show it."""
    train(settings(folder, tmp_path / "trained", steps=30, batch=48))
    train(settings(folder, tmp_path / "still", steps=30, batch=48, lr=1e-6))
    trained, still = losses(tmp_path / "trained"), losses(tmp_path / "still")
    assert sum(trained[-3:]) < 0.1 * sum(trained[:3])
    assert sum(still[-3:]) > 0.5 * sum(still[:3]), "the negative control"


def test_a_run_cut_in_two_is_the_same_to_the_last_bit(folder, tmp_path):
    whole = train(settings(folder, tmp_path / "whole", steps=10))
    assert whole["step"] == 10
    train(settings(folder, tmp_path / "parts", steps=4))
    parts = train(settings(folder, tmp_path / "parts", steps=10))
    assert parts == whole
    assert equal(*(checkpoint(tmp_path / name) for name in ("whole", "parts")))
    lines = [(tmp_path / name / "log.jsonl").read_text() for name in ("whole", "parts")]
    assert lines[0] == lines[1]
    assert len(losses(tmp_path / "whole")) == 10


def test_a_seed_of_its_own_is_another_run(folder, tmp_path):
    """The negative control of the test above."""
    results = [train(settings(folder, tmp_path / str(seed), seed=seed, steps=2)) for seed in (0, 1)]
    assert results[0]["loss"] != results[1]["loss"]


def test_a_finished_run_does_nothing_and_lines_after_the_checkpoint_are_dropped(folder, tmp_path):
    done = train(settings(folder, tmp_path, steps=2))
    log = (tmp_path / "log.jsonl").read_text()
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "loss": 9.0}) + "\n")
    assert train(settings(folder, tmp_path, steps=2)) == done
    assert (tmp_path / "log.jsonl").read_text() == log


def test_the_waterfall_divides_the_step_size(folder, tmp_path):
    trainer = Trainer(settings(folder, tmp_path, patience=2))
    rates = []
    for error in (0.5, 0.6, 0.5, 0.4, 0.4, 0.4):
        trainer.waterfall.step(error)
        rates.append(trainer.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx([0.03, 0.03, 0.003, 0.003, 0.003, 0.0003])


def test_the_error_is_the_share_of_wrong_answers(folder, tmp_path):
    class Always(torch.nn.Module):
        def forward(self, x):
            return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.int64), 10)

    trainer = Trainer(settings(folder, tmp_path))
    labels = torch.tensor(
        [t for _, t in (trainer.val_set[0, i] for i in range(len(trainer.val_set)))]
    )
    trainer.model = Always()
    assert len(labels) > 1 and 0 < (labels != 0).sum() < len(labels)
    assert trainer.error() == pytest.approx(float((labels != 0).double().mean()))


def test_the_command_line_sets_every_setting(folder, tmp_path, capsys):
    options = [f"--{key.replace('_', '-')}={value}" for key, value in {**TINY, "steps": 1}.items()]
    main([str(folder), str(tmp_path), *options])
    assert json.loads(capsys.readouterr().out)["step"] == 1
    assert checkpoint(tmp_path)["settings"]["width"] == "0.06"


def test_refusals_say_what_to_do(folder, tmp_path):
    with pytest.raises(
        ValueError, match=r"batch: expected 1 \(processes\) to 96 \(images\), got 97"
    ):
        train(settings(folder, tmp_path, batch=97))
    with pytest.raises(ValueError, match="expected images in .*got none"):
        train(settings(tmp_path, tmp_path))
    train(settings(folder, tmp_path, steps=1))
    with pytest.raises(ValueError, match="differs in lr, seed"):
        train(settings(folder, tmp_path, lr=0.5, seed=3))
    with pytest.raises(ValueError, match="the loss is (nan|inf); lower lr"):
        train(settings(folder, tmp_path / "far", lr=1e25))


@pytest.mark.parametrize(
    "change",
    [
        {"steps": 0},
        {"steps": -1},
        {"epochs": 0},
        {"evaluate_every": 0},
        {"checkpoint_every": 0},
        {"patience": 0},
        {"size": 0},
        {"width": 0.0},
        {"factor": 1.0},
    ],
    ids=str,
)
def test_settings_out_of_range(change):
    with pytest.raises(ValueError, match=f"{next(iter(change))}: expected"):
        settings("folder", "output", **change)


def test_labels_mean_the_same_in_training_and_validation(tmp_path):
    """Else the error would be measured against other classes without a word."""
    folder = example_folder(tmp_path / "images", classes=3, images=8, size=8)
    (folder / "train" / ".thumbnails").mkdir()
    trainer = Trainer(settings(str(folder), str(tmp_path), batch=4))
    assert trainer.train_set.classes == trainer.val_set.classes == ["class0", "class1", "class2"]
    for image in (folder / "val" / "class1").iterdir():
        image.unlink()
    assert {label for _, label in Trainer(settings(folder, tmp_path, batch=4)).val_set.files} == {
        0,
        2,
    }
    (folder / "val" / "class1").rename(folder / "val" / "class9")
    with pytest.raises(ValueError, match="same classes in train and val, but class1, class9"):
        Trainer(settings(folder, tmp_path, batch=4))


def test_a_line_that_was_cut_off_does_not_keep_a_run_from_going_on(folder, tmp_path):
    train(settings(folder, tmp_path, steps=2))
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    train(settings(folder, tmp_path, steps=3))
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps[-1] == 2 and steps == sorted(steps)


# ---- The parts


def test_images_depend_on_seed_epoch_and_number_alone(folder):
    data = Images(folder / "train", 16, augment=True)
    assert data.classes == ["class0", "class1", "class2", "class3"] and len(data) == 96
    x, label = data[3, 50]
    assert x.shape == (3, 16, 16) and x.dtype == torch.float32 and label == 2
    assert torch.equal(Images(folder / "train", 16, augment=True)[3, 50][0], x)
    for other in (
        data[4, 50],
        data[3, 51],
        Images(folder / "train", 16, augment=True, seed=1)[3, 50],
    ):
        assert not torch.equal(other[0], x)
    plain = Images(folder / "val", 16)
    assert torch.equal(plain[0, 1][0], plain[7, 1][0])


def test_an_image_that_cannot_be_read_is_named(tmp_path):
    example_folder(tmp_path, classes=1, images=1)
    (tmp_path / "train" / "class0" / "0.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"0\.png"):
        Images(tmp_path / "train", 16)[0, 0]


def test_grey_and_transparent_images_become_three_colours(tmp_path):
    (tmp_path / "a").mkdir()
    Image.new("L", (10, 30), 128).save(tmp_path / "a" / "0.png")
    Image.new("RGBA", (30, 10), (128, 128, 128, 5)).save(tmp_path / "a" / "1.png")
    for i in range(2):
        x, _ = Images(tmp_path, 8)[0, i]
        assert torch.equal(x, torch.zeros(3, 8, 8))


def test_boxes_lie_in_the_image():
    dice = random.Random(0)
    for width, height in ((10, 10), (200, 30), (5, 400)):
        for _ in range(200):
            left, top, right, bottom = random_box(width, height, dice)
            assert 0 <= left < right <= width + 1e-9 and 0 <= top < bottom <= height + 1e-9
    assert central_box(80, 160) == (5, 45, 75, 115)


def test_every_image_is_used_once_in_an_epoch_in_an_order_of_its_own(folder, tmp_path):
    chosen = settings(folder, tmp_path, batch=7)
    orders = [[i for part in batches(chosen, 30, epoch) for _, i in part] for epoch in (0, 1)]
    assert all(len(set(order)) == len(order) == 28 for order in orders) and orders[0] != orders[1]
    assert orders[0] == [i for part in batches(chosen, 30, 0) for _, i in part]


def test_inception_has_the_size_it_says():
    assert sum(p.numel() for p in Inception(1000).parameters()) == pytest.approx(4.4e6, rel=0.02)
    assert Inception(5, 0.1)(torch.zeros(2, 3, 33, 40)).shape == (2, 5)


# ---- The cost


def test_work_counted_by_hand():
    """A convolution to 2 maps of 4x4 from 3 of 6x6, 3x3 taps, and a layer from 32 to 5."""
    model = nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    work = work_per_image(model, torch.zeros(1, 3, 6, 6), batch=4)
    convolution, linear = 2 * 16 * 2 * 27, 2 * 32 * 5
    assert work.forward == convolution + linear
    assert work.backward == convolution + 2 * linear  # the image needs no gradient
    assert work.statistics == 2 * 36 * 3**2 + 2 * 32**2
    assert work.precondition == 2 * (9 * 2) * 3**2 + 2 * 4 * 32**2
    assert work.inverse == 3**3 + 32**3
    assert (
        work_per_image(model, torch.zeros(1, 3, 6, 6), batch=100).precondition
        == 324 + 2 * 5 * 32**2
    )


def test_work_leaves_the_model_as_it_was():
    model = Inception(3, 0.06)
    model[0].eval() if isinstance(model, nn.Sequential) else model.features[0].eval()
    before = {name: b.clone() for name, b in model.named_buffers()}
    work_per_image(model, torch.zeros(1, 3, 24, 24), 8)
    assert model.training and not model.features[0].training
    assert all(torch.equal(before[name], b) for name, b in model.named_buffers())
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert all(p.grad is None for p in model.parameters())


def test_cost_is_the_arithmetic_it_says():
    work = work_per_image(Inception(10, 0.1), torch.zeros(1, 3, 32, 32), 256)
    plan = {
        "images": 1_300_000,
        "epochs": 20,
        "batch": 256,
        "period": 500,
        "sample_size": 2048,
        "flops_per_second": 1e13,
    }
    cost = training_cost(work, **plan)
    assert cost.updates == 101_562 and cost.renewals == 204
    gradients = 101_562 * 256 * (work.forward + work.backward)
    rest = 101_562 * work.precondition + 204 * (
        2048 * (work.forward + work.statistics) + work.inverse
    )
    assert math.isclose(cost.flops, gradients + rest) and math.isclose(
        cost.share, rest / (gradients + rest)
    )
    assert math.isclose(cost.days * 86_400 * 1e13, cost.flops)
    assert math.isclose(
        training_cost(work, **{**plan, "flops_per_second": 2e13}).seconds, cost.seconds / 2
    )
    assert replace(cost, period=250).statistics > cost.statistics
    with pytest.raises(ValueError, match="batch"):
        training_cost(work, **{**plan, "batch": 0})
    with pytest.raises(ValueError, match="batch: expected at most images times epochs, 20"):
        training_cost(work, **{**plan, "images": 1})


def test_work_of_what_it_cannot_count():
    layer, image = nn.Linear(4, 3), torch.zeros(1, 4)
    with torch.no_grad():
        assert work_per_image(layer, image, 8).backward == 24
    for wrong in (torch.zeros(2, 4), torch.zeros(4)):
        with pytest.raises(ValueError, match="image: expected one"):
            work_per_image(layer, wrong, 8)
    with pytest.raises(ValueError, match="batch: expected"):
        work_per_image(layer, image, 0)
    with pytest.raises(ValueError, match="model: expected parameters"):
        work_per_image(layer.requires_grad_(False), image, 8)
    with pytest.raises(ValueError, match=r"model: expected plain layers, got whitened \['0'\]"):
        work_per_image(whiten_model(nn.Sequential(nn.Linear(4, 3))), image, 8)
    for options, name in (((0,), "classes"), ((3, 0.0), "width")):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            Inception(*options)


@pytest.mark.parametrize(
    ("world", "device", "calls"),
    [
        (1, "cpu", []),
        (1, "cuda", []),
        (2, "cpu", ["init gloo", "leave"]),
        (2, "cuda", ["device 1", "init nccl", "leave"]),
    ],
)
def test_one_process_joins_nobody_and_only_several_take_a_gpu_each(
    world, device, calls, monkeypatch
):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    monkeypatch.setenv("LOCAL_RANK", "1")
    seen = []
    monkeypatch.setattr("torch.cuda.set_device", lambda rank: seen.append(f"device {rank}"))
    monkeypatch.setattr("torch.distributed.init_process_group", lambda x: seen.append(f"init {x}"))
    monkeypatch.setattr("torch.distributed.destroy_process_group", lambda: seen.append("leave"))
    with processes(device):
        pass
    assert seen == calls
