"""Memory across batches, and evaluation that scores every token once, in Lightning's own loops."""

import itertools
from functools import partial

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins import MixedPrecision

from conftest import SMALL, small_model
from txl.data.streams import DocumentStreams, OrderedStreams
from txl.settings.schema import EvaluationSettings, TrainingSettings
from txl.training.hardware import used_memory
from txl.training.module import LanguageModel
from txl.training.optimizers import adamw
from txl.training.schedules import cosine


def module_of(
    training=(2, 5, 6, None, "full"), evaluation=(2, 5, 6, None, "full"), clamp=None, chunks=1, **changes
) -> LanguageModel:
    return LanguageModel(
        small_model(**changes).train(),
        TrainingSettings(*training, "ordered", "\n", False, False, chunks),
        EvaluationSettings(*evaluation, "ordered", "\n", clamp, None, [], 1, None),
        partial(adamw, lr=1e-3, beta1=0.9, beta2=0.95, weight_decay=0.0),
        partial(cosine, warmup_steps=2),
    )


def trainer_of(**settings) -> pl.Trainer:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        accelerator="cpu", devices=1, precision="64-true", enable_model_summary=False, **quiet, **settings
    )


def tokens_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SMALL["vocabulary"], length)


def score_of(
    tokens: np.ndarray, batch: int, segment: int, memory: int, attention: int | None, clamp: int | None = None
) -> tuple[float, int]:
    module = module_of(evaluation=(batch, segment, memory, attention, "full"), clamp=clamp)
    trainer_of().validate(module, OrderedStreams(tokens, batch, segment), verbose=False)
    return module.scores.loss, module.scores.count


def plain_score(tokens: np.ndarray, reach: int) -> float:
    """The mean score by reading the text one token at a time, from the first."""
    model = small_model()
    memory, total = model.empty_memory(1, reach), 0.0
    for before, after in itertools.pairwise(tokens):
        hidden, memory = model(torch.tensor([[before]]), memory, attention_length=reach)
        total += model.embedding.scores(hidden, torch.tensor([[after]])).item()
    return total / (len(tokens) - 1)


@pytest.mark.parametrize(("loss", "segment"), [("full", 3), ("half", 4)])
def test_each_document_is_scored_as_if_it_were_alone(loss, segment):
    step = segment // 2 if loss == "half" else segment
    tokens = tokens_of(60)
    tokens[[9, 10, 31]] = 7
    streams = DocumentStreams(tokens, 1, segment, step=step, border=[7])
    edges = [*streams.starts.tolist(), 59]
    assert len(edges) > 4

    def score(streams):
        module = module_of(evaluation=(1, segment, 80, None, loss))
        trainer_of().validate(module, streams, verbose=False)
        return module.scores.total

    alone = [
        score(OrderedStreams(tokens[begin : end + 1], 1, segment, step=step))
        for begin, end in itertools.pairwise(edges)
    ]
    assert score(streams) == pytest.approx(sum(alone), abs=1e-9)


def test_a_segment_of_any_length_is_remembered_whole():
    streams = OrderedStreams(tokens_of(200), 1, 6, variable_length=True)
    module, read = module_of(training=(1, 6, 300, None, "full")).eval(), 0
    for batch in streams:
        read += batch.inputs.shape[1]
        module.training_step(batch, 0)
        assert module.memory.length.tolist() == [read]
    assert read == 199


@pytest.mark.parametrize("length", [2, 30, 31, 37])
def test_the_score_does_not_depend_on_the_segments_nor_on_how_the_length_divides(length):
    tokens, reach = tokens_of(length), 6
    expected = plain_score(tokens, reach)
    for segment in (1, 4, 6, 50):
        loss, count = score_of(tokens, 1, segment, reach, reach)
        assert count == length - 1
        assert loss == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 40])
def test_every_batch_size_scores_every_token_once(batch):
    assert score_of(tokens_of(31), batch, 4, 6, None)[1] == 30


def test_a_longer_attention_changes_the_score():
    losses = {score_of(tokens_of(60), 1, 5, 20, reach)[0] for reach in (1, 5, 20)}
    assert len(losses) == 3


def test_a_clamp_of_evaluation_is_gone_in_training():
    tokens = tokens_of(60)
    assert score_of(tokens, 1, 5, 20, 20, clamp=3)[0] != score_of(tokens, 1, 5, 20, 20)[0]
    module = module_of(evaluation=(1, 5, 20, 20, "full"), clamp=3)
    trainer_of().validate(module, OrderedStreams(tokens, 1, 5), verbose=False)
    assert module.model.position.clamp_length is None


class Memories(pl.Callback):
    """Keeps what the module remembers after each training step."""

    def __init__(self) -> None:
        self.seen = []

    def on_train_batch_end(self, trainer, module, *_):
        self.seen.append(module.memory)


@pytest.mark.parametrize("slots", [0, 6])
def test_memory_passes_from_step_to_step_and_a_new_epoch_forgets(slots):
    keeper, streams = Memories(), OrderedStreams(tokens_of(31), 2, 5)
    assert len(streams) == 3
    trainer_of(max_steps=7, max_epochs=-1, callbacks=[keeper], num_sanity_val_steps=0).fit(
        module_of(training=(2, 5, slots, None, "full")), streams, streams
    )
    lengths = [memory.length.tolist() for memory in keeper.seen]
    filled = [[min(slots, 5 * n)] * 2 for n in (1, 2, 3)]
    assert lengths == [*filled, *filled, filled[0]]
    assert not any(states.requires_grad for memory in keeper.seen for states in memory.states)


def test_half_loss_without_memory_is_the_authors_ext_len():
    """Their segment i reads [i·h - h, i·h + h), from 0 on, and scores its last h targets."""
    model, tokens, half = small_model(), torch.from_numpy(tokens_of(30))[None], 3
    expected = []
    for begin in range(0, 29, half):
        inputs = tokens[:, max(0, begin - half) : min(29, begin + half)]
        hidden, _ = model(inputs, model.empty_memory(1, 0))
        targets = tokens[:, begin + 1 : begin + half + 1]
        expected.append(model.embedding.scores(hidden[:, -targets.shape[1] :], targets)[0])
    module = module_of(training=(1, 2 * half, 0, None, "half"))
    found = []
    for batch in OrderedStreams(tokens[0].numpy(), 1, 2 * half, step=half):
        scores, _ = module.eval()._read(batch, None, module.training_settings)
        found.append(scores[batch.scored])
    torch.testing.assert_close(torch.cat(found), torch.cat(expected), rtol=0, atol=1e-12)


def test_with_half_loss_the_memory_ends_where_the_next_segment_begins():
    """Reading 8 tokens in segments of 4 that overlap by half equals one segment of 8: nothing is missed."""
    model, tokens = small_model(), torch.from_numpy(tokens_of(9))[None]
    whole, _ = model(tokens[:, :8], model.empty_memory(1, 0))
    expected = model.embedding.scores(whole, tokens[:, 1:])
    module = module_of(training=(1, 4, 8, None, "half"))
    module.eval()
    streams, memory, found = OrderedStreams(tokens[0].numpy(), 1, 4, step=2), None, []
    for batch in streams:
        scores, memory = module._read(batch, memory, module.training_settings)
        found.append(scores[batch.scored])
    torch.testing.assert_close(torch.cat(found)[None], expected, rtol=0, atol=1e-12)


def test_the_second_step_reads_what_the_first_remembered():
    streams, losses = OrderedStreams(tokens_of(31), 2, 5), {}
    for slots in (0, 6):
        module = module_of(training=(2, 5, slots, None, "full"))
        first, second = list(streams)[:2]
        losses[slots] = [module.training_step(batch, 0).item() for batch in (first, second)]
    assert losses[0][0] == losses[6][0]
    assert losses[0][1] != losses[6][1]


def test_validation_in_between_changes_nothing_in_training():
    def weights(**settings):
        pl.seed_everything(1, verbose=False)
        module = module_of(dropout=0.2)
        streams = OrderedStreams(tokens_of(61), 2, 5)
        trainer_of(max_steps=6, max_epochs=-1, num_sanity_val_steps=0, **settings).fit(
            module, streams, streams
        )
        return module.state_dict()

    without = weights(limit_val_batches=0)
    between = weights(val_check_interval=2, check_val_every_n_epoch=None)
    assert all(torch.equal(without[name], between[name]) for name in without)


def test_rows_read_in_chunks_give_the_same_training():
    """Gradients, clipping, parameters and memory, over an epoch's end, with unequal numbers of targets."""

    def trained(chunks):
        module = module_of(training=(4, 5, 6, None, "full"), chunks=chunks)
        streams = OrderedStreams(tokens_of(50), 4, 5)
        trainer_of(max_steps=7, max_epochs=-1, gradient_clip_val=0.5, limit_val_batches=0).fit(
            module, streams, streams
        )
        return module

    whole = trained(1)
    for chunks in (2, 4):
        other = trained(chunks)
        for name, expected in whole.state_dict().items():
            torch.testing.assert_close(other.state_dict()[name], expected, rtol=0, atol=1e-9)
        assert other.gradient_norm.item() == pytest.approx(whole.gradient_norm.item(), abs=1e-9)
        for states, expected in zip(other.memory.states, whole.memory.states, strict=True):
            torch.testing.assert_close(states, expected, rtol=0, atol=1e-8)
        assert other.score_sum_and_count_2.tolist() == pytest.approx(
            whole.score_sum_and_count_2.tolist(), rel=1e-5
        )


@pytest.mark.parametrize("chunks", [1, 2])
def test_float16_scales_the_loss_and_clips_the_true_gradient(chunks):
    """The norm is that of float32 to half precision, and not 65536 times as large."""

    def norm(**precision):
        module = module_of(training=(4, 5, 6, None, "full"), chunks=chunks, dtype=torch.float32)
        streams, quiet = OrderedStreams(tokens_of(50), 4, 5), {"logger": False, "enable_checkpointing": False}
        quiet |= {"enable_progress_bar": False, "enable_model_summary": False, "limit_val_batches": 0}
        trainer = pl.Trainer(
            accelerator="cpu", devices=1, max_steps=1, gradient_clip_val=0.1, **precision, **quiet
        )
        trainer.fit(module, streams, streams)
        return module.gradient_norm.item()

    half = norm(plugins=[MixedPrecision("16-mixed", "cpu")])
    assert half == pytest.approx(norm(precision="32-true"), rel=0.02)


class Growth(pl.Callback):
    """Counts what the loss of each step hangs on, and looks at the memory of the process now and then."""

    def __init__(self) -> None:
        self.nodes, self.resident = set(), []

    def on_before_backward(self, trainer, module, loss):
        if trainer.global_step % 100 == 99 or trainer.global_step < 3:
            waiting, seen = [loss.grad_fn], set()
            while waiting:
                node = waiting.pop()
                if node is not None and node not in seen:
                    seen.add(node)
                    waiting += [before for before, _ in node.next_functions]
            self.nodes.add(len(seen))

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step % 100 == 0:
            self.resident.append(used_memory(module.device))


@pytest.mark.skipif(used_memory(torch.device("cpu")) is None, reason="nobody tells the memory in use here")
def test_memory_is_flat_over_2000_steps_and_no_graph_grows():
    """A graph kept from step to step would be some 10 kB a step, 15 MB in all, in this small model."""
    growth, streams = Growth(), OrderedStreams(tokens_of(2001), 2, 5)
    quick = {"max_epochs": -1, "num_sanity_val_steps": 0, "limit_val_batches": 0}
    trainer_of(max_steps=2000, callbacks=[growth], **quick).fit(module_of(dropout=0.1), streams, streams)
    assert len(growth.nodes) == 1
    assert growth.resident[-1] - growth.resident[4] < 4e6
