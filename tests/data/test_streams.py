"""Every target once, in order, whatever the sizes; every process the same number of batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data import OrderedStreams

sizes = {
    "length": st.integers(2, 400),
    "rows": st.integers(1, 6),
    "segment": st.integers(1, 40),
    "processes": st.integers(1, 4),
}


@settings(max_examples=200, deadline=None)
@given(**sizes)
def test_every_token_after_the_first_is_a_target_once(length, rows, segment, processes):
    tokens = np.arange(length)
    targets, batches = [], set()
    for rank in range(processes):
        streams = OrderedStreams(tokens, rows * processes, segment, rank, processes)
        batches.add(len(list(streams)))
        for batch in streams:
            assert batch.inputs.shape == batch.targets.shape == batch.scored.shape == (rows, segment)
            assert (batch.targets[batch.scored] == batch.inputs[batch.scored] + 1).all()
            targets += batch.targets[batch.scored].tolist()
    assert sorted(targets) == list(range(1, length))
    assert batches == {len(streams)}


@settings(max_examples=100, deadline=None)
@given(**sizes)
def test_processes_share_the_rows_of_one_global_batch(length, rows, segment, processes):
    tokens = np.arange(length)
    together = list(OrderedStreams(tokens, rows * processes, segment))
    parts = [list(OrderedStreams(tokens, rows * processes, segment, r, processes)) for r in range(processes)]
    for step, batch in enumerate(together):
        for field, whole in batch._asdict().items():
            pieces = [getattr(part[step], field) for part in parts]
            assert np.array_equal(np.concatenate(pieces), whole)


@settings(max_examples=100, deadline=None)
@given(**sizes)
def test_each_row_reads_on_where_it_stopped(length, rows, segment, processes):
    streams = OrderedStreams(np.arange(length), rows, segment)
    batches = list(streams)
    for before, after in itertools.pairwise(batches):
        real = after.scored[:, 0]
        assert (after.inputs[real, 0] == before.targets[real, -1]).all()


@settings(max_examples=100, deadline=None)
@given(length=st.integers(2, 200), rows=st.integers(1, 4), half=st.integers(1, 12))
def test_half_loss_scores_every_target_once_with_half_a_segment_before_it(length, rows, half):
    streams, targets, before = OrderedStreams(np.arange(length), rows, 2 * half, loss="half"), [], None
    assert streams.step == half
    for number, batch in enumerate(streams):
        assert (batch.targets[batch.scored] == batch.inputs[batch.scored] + 1).all()
        if before is not None:
            assert not batch.scored[:, :half].any()
            assert (batch.inputs[:, 0] == before.inputs[:, half]).all() or number == len(streams) - 1
        targets += batch.targets[batch.scored].tolist()
        before = batch
    assert sorted(targets) == list(range(1, length))
    assert number == len(streams) - 1


def test_only_the_first_segment_of_an_epoch_is_fresh():
    streams = OrderedStreams(np.arange(50), 3, 4)
    for _ in range(2):
        assert [batch.fresh.tolist() for batch in streams] == [[True] * 3] + [[False] * 3] * (
            len(streams) - 1
        )


def test_it_says_what_each_process_reads():
    assert OrderedStreams(np.arange(101), 4, 5, rank=1, world_size=2).describe() == (
        "process 1 of 2 reads rows 2 to 3 of 4 in order: tokens 50 to 100, about 25 a row in 5 segments of 5"
    )


@pytest.mark.parametrize(("loss", "message"), [("third", "full or half, not 'third'"), ("half", "an even")])
def test_an_impossible_loss_is_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        OrderedStreams(np.arange(9), 1, 3, loss=loss)


@pytest.mark.parametrize(
    ("length", "rows", "segment", "processes", "message"),
    [
        (1, 1, 1, 1, "at least 2 tokens"),
        (0, 1, 1, 1, "at least 2 tokens"),
        (9, 0, 1, 1, "must be positive"),
        (9, 1, 0, 1, "must be positive"),
        (9, 3, 1, 2, "batch_size 3 must be a multiple of the 2 processes"),
    ],
)
def test_impossible_sizes_are_refused(length, rows, segment, processes, message):
    with pytest.raises(ValueError, match=message):
        OrderedStreams(np.arange(length), rows, segment, 0, processes)
