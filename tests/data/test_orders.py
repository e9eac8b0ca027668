"""Every order: every target once, the same batches on any processes, a place saved and restored exactly."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl.data.streams import STREAM_ORDERS, DocumentStreams, OrderedStreams
from txl.data.streams.base import variable_lengths
from txl.data.streams.orders import SentenceStreams, ShuffledStreams, beginnings, border_places

KINDS = [
    ("ordered", {}),
    ("ordered", {"parts": 2}),
    ("ordered", {"parts": 3}),
    ("ordered", {"random_start": True}),
    ("ordered", {"random_start": True, "parts": 2}),
    ("ordered", {"variable_length": True}),
    ("ordered", {"variable_length": True, "random_start": True}),
    ("documents", {"border": [0]}),
    ("documents", {"border": [0, 1]}),
    ("documents", {"border": [0], "parts": 2}),
    ("sentences", {"border": [0]}),
    ("sentences", {"border": [0], "parts": 2}),
    ("sentences", {"border": [0], "variable_length": True}),
    ("shuffled", {}),
    ("shuffled", {"parts": 2}),
]
corpora = {
    "text": st.integers(2, 2000).flatmap(
        lambda length: st.tuples(st.just(length), st.integers(2, 40), st.integers(0, 9))
    ),
    "rows": st.integers(1, 3),
    "segment": st.integers(1, 40),
    "processes": st.integers(1, 4),
    "kind": st.sampled_from(KINDS),
    "epoch": st.integers(0, 2),
}


def text_of(length: int, symbols: int, seed: int) -> np.ndarray:
    """Return random tokens; 0 is the border."""
    return np.random.default_rng(seed).integers(0, symbols, length).astype(np.uint8)


def places_of(kind, text, *sizes):
    """Return streams over a text that give the place of a token instead of the token.

    With `parts` in its options a segment is so many times as long as what is scored of it.
    """
    name, options = kind
    options = dict(options)
    segment = options.pop("parts", 1) * sizes[1]
    streams = STREAM_ORDERS[name](text, sizes[0], segment, *sizes[2:], step=sizes[1], seed=3, **options)
    streams.tokens = np.arange(len(text))
    return streams


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@settings(max_examples=300, deadline=None)
@given(**corpora)
def test_every_token_after_the_first_is_a_target_once_and_processes_share_the_batches(
    text, rows, segment, processes, kind, epoch
):
    text = text_of(*text)
    whole = places_of(kind, text, rows * processes, segment)
    parts = [places_of(kind, text, rows * processes, segment, r, processes) for r in range(processes)]
    assert {len(part) for part in parts} == {len(whole)}
    targets = []
    for number in range(len(whole)):
        batch = whole.batch(epoch, number)
        shared = [part.batch(epoch, number) for part in parts]
        assert same(batch, [np.concatenate(pieces) for pieces in zip(*shared, strict=True)])
        assert (batch.targets[batch.scored] == batch.inputs[batch.scored] + 1).all()
        targets += batch.targets[batch.scored].tolist()
    assert sorted(targets) == list(range(1, len(text)))


@settings(max_examples=60, deadline=None)
@given(after=st.integers(1, 4), **corpora)
def test_a_place_saved_at_any_step_gives_the_batches_that_remain(
    text, rows, segment, processes, after, kind, epoch
):
    text, batch_size = text_of(*text), 12 * rows
    first = places_of(kind, text, batch_size, segment, processes - 1, processes)
    for _ in range(epoch):
        list(first)
    again = places_of(kind, text, batch_size, segment, after - 1, after)
    expected = [again.batch(epoch, number) for number in range(len(again))]
    states = [first.state_dict(), *(first.state_dict() for _ in first)]
    assert [(s["epoch"], s["batch"]) for s in states] == [
        divmod(epoch * len(again) + number, len(again)) for number in range(len(again) + 1)
    ]
    for state in states[:-1]:
        again.load_state_dict(state)
        assert again.state_dict() == state
        rest = list(again)
        assert len(rest) == len(again) - state["batch"]
        assert all(same(*pair) for pair in zip(rest, expected[state["batch"] :], strict=True))
        assert again.state_dict() == states[-1]


@settings(max_examples=200, deadline=None)
@given(**{key: value for key, value in corpora.items() if key != "kind"}, half=st.booleans())
def test_no_document_sees_another(text, rows, segment, processes, epoch, half):
    text = text_of(*text)
    kind = ("documents", {"border": [0]} | ({"parts": 2} if half else {}))
    streams = places_of(kind, text, rows * processes, segment)
    starts = [place for place in range(len(text) - 1) if place == 0 or text[place] == 0]
    remembered = [[] for _ in streams.rows]
    for batch in streams:
        for row, inputs in enumerate(batch.inputs.tolist()):
            if batch.fresh[row]:
                remembered[row] = []
            for number, place in enumerate(inputs):
                if batch.scored[row, number]:
                    seen = remembered[row] + inputs[: number + 1]
                    assert seen == list(range(seen[0], place + 1))
                    assert seen[0] >= max(start for start in starts if start <= place)
            remembered[row] += inputs[: streams.step]


def test_documents_are_forgotten_where_they_end_and_nowhere_else():
    text = np.array([5, 6, 0, 7, 8, 9, 5, 0, 0, 6, 7])
    streams = DocumentStreams(text, 1, 3, border=[0])
    assert [(b.inputs[0][b.scored[0]].tolist(), b.fresh.item()) for b in streams] == [
        ([5, 6], True),  # its border is its last target,
        ([0, 7, 8], True),  # and the first input of the next
        ([9, 5], False),
        ([0], True),
        ([0, 6], True),
    ]
    assert streams.describe() == (
        "process 0 of 1 reads rows 0 to 0 of 1 by document: 4 documents, each read on its own, in 5 segments "
        "of 3, 67% of whose positions are scored"
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, 3), st.integers(1, 9))
def test_borders_are_found_piece_by_piece(tokens, width, piece):
    border = [0, 1, 0][:width]
    expected = [i + width - 1 for i in range(len(tokens) - width + 1) if tokens[i : i + width] == border]
    assert border_places(np.array(tokens, np.uint8), border, piece).tolist() == expected


def test_a_border_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one token"):
        border_places(np.arange(3), [])


@settings(max_examples=100, deadline=None)
@given(text=corpora["text"], rows=st.integers(1, 12), segment=st.integers(1, 40))
def test_rows_of_sentences_begin_with_one_and_read_on(text, rows, segment):
    text = text_of(*text)
    streams = places_of(("sentences", {"border": [0]}), text, rows, segment)
    begins = set(beginnings(text, [0]).tolist())
    read = [[] for _ in range(rows)]
    for number, batch in enumerate(streams):
        assert batch.fresh.all() == batch.fresh.any() == (number == 0)
        for row in range(rows):
            read[row] += batch.inputs[row][batch.scored[row]].tolist()
    for places in read:
        assert places == list(range(places[0], places[-1] + 1)) if places else True
        assert not places or places[0] in begins
    assert [place for places in read for place in places] == list(range(len(text) - 1))


def test_shuffled_segments_are_alone_and_in_another_order_in_each_epoch():
    streams = ShuffledStreams(np.arange(1001), 4, 10, seed=1)
    epochs = [list(streams) for _ in range(2)]
    orders = [[first for batch in epoch for first in batch.inputs[:, 0].tolist()] for epoch in epochs]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(0, 1000, 10))
    assert all(batch.fresh.all() for epoch in epochs for batch in epoch)
    other = ShuffledStreams(np.arange(1001), 4, 10, seed=2)
    assert not same(other.batch(0, 0), streams.batch(0, 0))


def test_each_epoch_starts_elsewhere_and_goes_on_in_order():
    streams = OrderedStreams(np.arange(101), 2, 7, random_start=True)
    starts = set()
    for epoch in range(20):
        batches = [streams.batch(epoch, number) for number in range(len(streams))]
        read = np.concatenate([batch.inputs for batch in batches], axis=1)
        assert (np.diff(read) % 101 == 1).all()
        starts.add(read[0, 0])
    assert len(starts) > 10


def test_variable_lengths_are_the_authors_draw():
    lengths = variable_lengths(10_000_000, 70, seed=0)
    assert lengths.sum() == 10_000_000
    assert lengths[:-1].min() >= 5
    assert lengths.max() == 85
    usual = lengths[lengths > 53]
    assert abs(len(usual) / len(lengths) - 0.95) < 0.005
    assert abs(usual.mean() - 69.5) < 0.1  # cut to whole tokens
    assert abs(usual.std() - 5) < 0.1
    assert abs(lengths[lengths < 53].mean() - 34.5) < 0.2


def test_variable_lengths_come_in_another_order_in_each_epoch():
    streams = OrderedStreams(np.arange(5000), 2, 32, variable_length=True)
    lengths = [[batch.inputs.shape[1] for batch in streams] for _ in range(2)]
    assert lengths[0] != lengths[1]
    assert sorted(lengths[0]) == sorted(lengths[1]) == sorted(streams.lengths)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            ("ordered", {"random_start": True, "variable_length": True}),
            " starting at a new random token each",
        ),
        (("ordered", {"variable_length": True}), "segments of variable length around 4"),
        (("sentences", {"border": [0]}), "in order, each from the beginning of a sentence: tokens 0 to 9"),
        (("shuffled", {}), "shuffled: 3 segments of 4 in 2 batches, reshuffled"),
    ],
)
def test_they_say_what_they_read(kind, text):
    assert text in places_of(kind, np.array([1, 2, 0, 1, 1, 1, 0, 1, 1, 1]), 2, 4).describe()


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (("ordered", {}), ("shuffled", {}), "has policy ordered, here it is shuffled"),
        (("ordered", {}), ("ordered", {"random_start": True}), "has random_start False, here it is True"),
        (("documents", {"border": [0]}), ("documents", {"border": [0, 1]}), "has border 0, here it is 0 1"),
    ],
)
def test_a_place_in_other_streams_is_refused(one, other, message):
    text = text_of(100, 3, 0)
    state = places_of(one, text, 2, 4).state_dict()
    with pytest.raises(ValueError, match=message):
        places_of(other, text, 2, 4).load_state_dict(state)


def test_sentences_have_no_random_start_and_half_loss_no_variable_length():
    with pytest.raises(TypeError):
        SentenceStreams(np.arange(9), 1, 2, border=[0], random_start=True)
    with pytest.raises(ValueError, match="cannot overlap"):
        OrderedStreams(np.arange(9), 1, 2, step=1, variable_length=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_corpus_of_one_token_is_refused(kind):
    with pytest.raises(ValueError, match="at least 2 tokens"):
        places_of(kind, np.zeros(1, np.uint8), 1, 2)
