"""The recurrence: what is kept, how much of it is real, and that nothing is changed in place."""

import pytest
import torch

from txl.model import Memory


def test_five_new_states_after_three_leave_the_last_four():
    old, new = torch.randn(1, 3, 2), torch.randn(1, 5, 2)
    memory = Memory.empty(1, rows=1, slots=4, width=2).append([old])
    assert memory.length.tolist() == [3]
    memory = memory.append([new])
    torch.testing.assert_close(memory.states[0], torch.cat([old, new], dim=1)[:, -4:], rtol=0, atol=0)
    assert memory.length.tolist() == [4]


@pytest.mark.parametrize("slots", [0, 1, 4, 9])
def test_ragged_segments_never_outgrow_the_slots(slots):
    memory, read = Memory.empty(2, rows=3, slots=slots, width=2), []
    for length in [1, 7, 2, 2, 9, 1, 1, 5, 3, 4]:
        segment = torch.randn(3, length, 2)
        read.append(segment)
        memory = memory.append([segment, segment + 1])
        whole = torch.cat(read, dim=1)
        assert memory.slots == slots
        assert memory.length.tolist() == [min(slots, whole.shape[1])] * 3
        real = memory.length[0].item()
        assert torch.equal(memory.states[0][:, slots - real :], whole[:, whole.shape[1] - real :])


def test_appending_and_forgetting_change_nothing_in_place():
    memory = Memory.empty(1, rows=2, slots=3, width=2).append([torch.randn(2, 3, 2)])
    states, length = memory.states[0].clone(), memory.length.clone()
    memory.append([torch.randn(2, 2, 2)])
    memory.forget(torch.tensor([True, False]))
    assert torch.equal(memory.states[0], states)
    assert torch.equal(memory.length, length)


def test_only_fresh_rows_forget():
    memory = Memory.empty(1, rows=3, slots=2, width=1).append([torch.randn(3, 2, 1)])
    assert memory.forget(torch.tensor([False, True, False])).length.tolist() == [2, 0, 2]


def test_the_memory_carries_no_gradient():
    hidden = torch.randn(1, 2, 2, requires_grad=True)
    assert not Memory.empty(1, rows=1, slots=2, width=2).append([hidden]).states[0].requires_grad


def test_another_number_of_layers_is_refused():
    with pytest.raises(ValueError, match="2 layers, not the 1"):
        Memory.empty(2, rows=1, slots=2, width=2).append([torch.zeros(1, 1, 2)])
