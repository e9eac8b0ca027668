"""Which checkpoints are kept, that they are whole, and what happens when one cannot be written."""

import logging
import random

import numpy as np
import pytest
import torch

from conftest import TINY
from txl.training.callbacks.checkpoints import WholeFiles, newest, random_state, set_random_state


@pytest.fixture
def tiny(text_file):
    return [*TINY, f"data.path={text_file}"]


def step_of(path) -> int:
    return torch.load(path, weights_only=True)["global_step"]


def test_the_last_two_the_best_and_every_kth_are_kept(run_here, tiny):
    directory = run_here(*tiny, "trainer.checkpoint_every=5", "trainer.keep_every=3", "optimizer.lr=0.01")
    kept = {path.name: step_of(path) for path in (directory / "checkpoints").iterdir()}
    assert kept == {
        "last.ckpt": 8,
        "previous.ckpt": 6,
        "best.ckpt": 8,
        "step-00000003.ckpt": 3,
        "step-00000006.ckpt": 6,
    }


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(run_here, tiny, monkeypatch, caplog):
    saves, save = [], torch.save

    def full(value, file):
        saves.append(value["global_step"])
        if len(saves) == 2:
            file.write(b"part")
            raise OSError(28, "No space left on device")
        save(value, file)

    monkeypatch.setattr(torch, "save", full)
    directory = run_here(*tiny, "trainer.checkpoint_every=3")
    assert saves[:2] == [3, 4]
    said = "the checkpoint of step 4 could not be written ([Errno 28] No space left on device)"
    assert said in caplog.text
    checkpoints = directory / "checkpoints"
    assert sorted(path.name for path in checkpoints.iterdir()) == ["best.ckpt", "last.ckpt", "previous.ckpt"]
    assert (step_of(checkpoints / "best.ckpt"), step_of(checkpoints / "last.ckpt")) == (8, 8)


def test_what_could_not_be_written_leaves_the_old_and_no_part(tmp_path, caplog):
    files, path = WholeFiles(), tmp_path / "last.ckpt"
    files.save_checkpoint({"global_step": 1}, path)
    before = path.read_bytes()

    class Unwritable:
        def __reduce__(self):
            raise RuntimeError("PytorchStreamWriter failed writing file")

    files.save_checkpoint({"global_step": 2, "bad": Unwritable()}, path)
    assert files.failed
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["last.ckpt"]
    assert "the previous one stays" in caplog.text


@pytest.mark.parametrize("damage", [b"", b"PK", b"no checkpoint at all"])
def test_the_newest_whole_one_is_found_and_damage_is_named(tmp_path, caplog, damage):
    assert newest(tmp_path) is None
    torch.save({"global_step": 3}, tmp_path / "previous.ckpt")
    assert newest(tmp_path) == (tmp_path / "previous.ckpt", 3)
    (tmp_path / "last.ckpt").write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path) == (tmp_path / "previous.ckpt", 3)
    assert "last.ckpt is damaged" in caplog.text
    torch.save({"global_step": 4}, tmp_path / "last.ckpt")
    assert newest(tmp_path) == (tmp_path / "last.ckpt", 4)


def test_random_numbers_go_on_where_they_were_through_a_file(tmp_path):

    def numbers():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]

    numbers()
    torch.save(random_state(), tmp_path / "state")
    expected = numbers()
    numbers()
    set_random_state(torch.load(tmp_path / "state", weights_only=True))
    assert numbers() == expected


def test_when_the_last_two_are_damaged_the_newest_of_the_others_is_found(tmp_path):
    for name, step in {"best": 5, "step-00000004": 4, "step-00000008": 8}.items():
        torch.save({"global_step": step}, tmp_path / f"{name}.ckpt")
    for name in ("last", "previous"):
        (tmp_path / f"{name}.ckpt").write_bytes(b"damaged")
    assert newest(tmp_path) == (tmp_path / "step-00000008.ckpt", 8)
    (tmp_path / "step-00000008.ckpt").write_bytes(b"damaged")
    assert newest(tmp_path) == (tmp_path / "best.ckpt", 5)


def test_a_run_of_which_no_checkpoint_can_be_read_is_not_begun_anew(tmp_path):
    (tmp_path / "last.ckpt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read; choose another hydra\.run\.dir"):
        newest(tmp_path)


def test_a_disk_that_fills_while_names_are_given_costs_no_run(run_here, tiny, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("txl.training.callbacks.checkpoints.link", full)
    directory = run_here(*tiny, "trainer.checkpoint_every=3")
    assert "the checkpoint of step 4 could not be written ([Errno 28]" in caplog.text
    assert step_of(directory / "checkpoints" / "last.ckpt") == 3


def test_after_one_that_could_not_be_written_the_two_before_are_still_two(run_here, tiny, monkeypatch):
    save = torch.save

    def full(value, file):
        if value["global_step"] > 4:
            raise OSError(28, "No space left on device")
        save(value, file)

    monkeypatch.setattr(torch, "save", full)
    checkpoints = run_here(*tiny, "trainer.checkpoint_every=3") / "checkpoints"
    assert (step_of(checkpoints / "previous.ckpt"), step_of(checkpoints / "last.ckpt")) == (3, 4)
