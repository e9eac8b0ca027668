"""The order of reading, chosen on the command line, and a text whose answer is known."""

import math

import pytest

from conftest import TINY
from txl.data import lagged_copy_entropy


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (
            [
                "training.streams=documents",
                "evaluation.streams=documents",
                "training.loss=half",
                "data.unit=word",
            ],
            ["by document: 164 documents, each read on its own"],
        ),
        (
            ["training.streams=sentences", "training.variable_length=true"],
            [
                "in order, each from the beginning of a sentence",
                "segments of variable length around 16",
                "training.streams=sentences with training.memory_length=16: the memory carries over",
                "evaluation: process 0 of 1 reads rows 0 to 3 of 4 in order: ",
            ],
        ),
        (
            ["training.streams=shuffled", "training.memory_length=0"],
            ["shuffled: ", "reshuffled every epoch, without memory"],
        ),
    ],
)
def test_a_run_reads_as_it_is_told_and_says_so(train, text_file, overrides, said):
    done = train(*TINY, f"data.path={text_file}", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr
    log = (train.run_directory / "train.log").read_text("utf-8")
    for text in said:
        assert text in log
    assert train.results()["valid"]["loss"] < 6


def test_a_blank_line_can_be_named_on_the_command_line(train, text_file):
    text_file.write_text(text_file.read_text("utf-8").replace("\n", "\n\n"), "utf-8")
    done = train(*TINY, f"data.path={text_file}", "training.streams=documents", r'training.border="\n\n"')
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("border", "said"),
    [
        ("€", "error: training.border='€': "),
        (
            "zzz the",
            "error: training.border='zzz the' is nowhere in the training text, so training.st",
        ),
    ],
)
def test_a_border_that_is_not_there_is_one_clear_line(train, text_file, border, said):
    done = train(*TINY, f"data.path={text_file}", "training.streams=documents", f"training.border='{border}'")
    assert done.returncode == 1
    assert said in (done.stdout + done.stderr)
    assert "Traceback" not in done.stdout + done.stderr


def test_a_text_with_a_known_answer_is_learned_as_far_as_the_model_reaches(train):
    done = train(
        *TINY[1:],
        "data=lagged_copy",
        "data.vocabulary=4",
        "data.lag=3",
        "data.probability=0.9",
        "data.length=60000",
        "training.batch_size=16",
        "optimizer.lr=0.01",
        "trainer.max_steps=120",
        "trainer.validate_every=60",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    truth = lagged_copy_entropy(4, 0.9)
    assert f"entropy of a token {truth:.6f} nats" in done.stdout
    assert truth - 0.05 < train.results()["test"]["loss"] < (truth + math.log(4)) / 2
