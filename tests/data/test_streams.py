"""Every target once, in order, whatever the sizes; every process the same number of batches."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data.streams import OrderedStreams

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
    streams, targets, before = OrderedStreams(np.arange(length), rows, 2 * half, step=half), [], None
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


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@settings(max_examples=50, deadline=None)
@given(
    length=st.integers(2, 2000),
    rows=st.integers(1, 3),
    segment=st.integers(1, 40),
    epoch=st.integers(0, 3),
    before=st.integers(1, 4),
    after=st.integers(1, 4),
)
def test_a_saved_place_gives_the_batches_that_remain(length, rows, segment, epoch, before, after):
    tokens, batch_size = np.arange(length), 12 * rows
    first = OrderedStreams(tokens, batch_size, segment, rank=before - 1, world_size=before)
    for _ in range(epoch):
        list(first)
    again = OrderedStreams(tokens, batch_size, segment, rank=after - 1, world_size=after)
    whole = list(OrderedStreams(tokens, batch_size, segment, rank=after - 1, world_size=after))
    places = [first.state_dict(), *(first.state_dict() for _ in first)]
    for number, place in enumerate(places):
        again.load_state_dict(place)
        assert again.state_dict() == place
        assert (place["epoch"], place["batch"]) == divmod(epoch * len(whole) + number, len(whole))
        rest = list(again)
        assert len(rest) == len(whole) - number % len(whole)
        assert all(same(*pair) for pair in zip(rest, whole[place["batch"] :], strict=True))
        assert again.state_dict() | {"epoch": 0} == places[0] | {"epoch": 0}


def test_an_epoch_left_early_begins_again():
    streams = OrderedStreams(np.arange(50), 1, 4)
    next(iter(streams))
    assert streams.state_dict()["batch"] == 1
    assert same(next(iter(streams)), streams.batch(0, 0))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tokens": np.arange(40)}, "has tokens 50, here it is 40"),
        ({"batch_size": 4}, "has batch_size 2, here it is 4"),
        ({"segment_length": 6}, "has segment_length 4, here it is 6"),
        ({"step": 2}, "has step 4, here it is 2"),
    ],
)
def test_a_place_in_other_streams_is_refused(changed, message):
    settings = {"tokens": np.arange(50), "batch_size": 2, "segment_length": 4}
    with pytest.raises(ValueError, match=message):
        OrderedStreams(**settings | changed).load_state_dict(OrderedStreams(**settings).state_dict())


def test_a_place_beyond_the_epoch_is_refused():
    streams = OrderedStreams(np.arange(50), 2, 4)
    with pytest.raises(ValueError, match="batch 7 of epoch 0, but an epoch has 7 batches"):
        streams.load_state_dict(streams.state_dict() | {"batch": 7})


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


@pytest.mark.parametrize("step", [0, 4, -1])
def test_an_impossible_step_is_refused(step):
    with pytest.raises(ValueError, match="must be from 1 to the segment_length 3"):
        OrderedStreams(np.arange(9), 1, 3, step=step)


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
