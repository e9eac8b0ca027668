"""Checkpoints in and out: bit for bit what went in, refused where it does not fit, never run."""

import json
import pickle
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from conftest import SMALL, TINY, small_model
from txl.interop import files
from txl.interop.checkpoints import export, load_foreign
from txl.interop.files import PickledObjectError, read_safetensors, write_safetensors
from txl.model import (
    AlibiPosition,
    LearnedPosition,
    PositionEncoding,
    RelativePosition,
    RotaryPosition,
    ShawPosition,
    SinusoidalPosition,
    T5Position,
    TransformerXL,
)

POSITIONS = [
    (RelativePosition, {"clamp_length": None, "shared_biases": True}),
    (RelativePosition, {"clamp_length": 3, "shared_biases": False}),
    (ShawPosition, {"clamp_length": 3, "global_terms": False}),
    (ShawPosition, {"clamp_length": None, "global_terms": True}),
    (SinusoidalPosition, {"clamp_length": 2, "from_end": True}),
    (LearnedPosition, {}),
    (RotaryPosition, {}),
    (AlibiPosition, {}),
    (T5Position, {"buckets": 6, "max_distance": 7}),
    (PositionEncoding, {}),
]
EMBEDDINGS = {
    "plain": {},
    "adaptive": {"cutoffs": [4, 9]},
    "adaptive, narrower": {"cutoffs": [4, 9], "div_val": 2, "tie_projections": [False, True, True]},
    "narrow": {"d_embed": 8, "pre_norm": True},
}
READING = {"memory_length": 5, "attention_length": 6, "clamp_length": None}


def described(position=RelativePosition, arguments=None, dtype=torch.float64, **changes):
    """A small model and its description."""
    arguments = arguments or {}
    description = {
        "model": {"_target_": "txl.model.TransformerXL", **SMALL, **changes},
        "position": {"_target_": f"txl.model.{position.__name__}", "key_length": 64, **arguments},
        "reading": READING,
    }
    return small_model(dtype=dtype, position=partial(position, **arguments), **changes), description


@torch.no_grad()
def outputs(model) -> torch.Tensor:
    """Log-probabilities of two segments with memory."""
    tokens = torch.arange(4 * 6).view(2, 12) * 5 % SMALL["vocabulary"]
    memory, read = model.empty_memory(2, READING["memory_length"]), []
    for segment in tokens.split(6, dim=1):
        hidden, memory = model(segment, memory, READING["attention_length"])
        read.append(model.embedding.log_probabilities(hidden))
    return torch.cat(read, dim=1)


def assert_same(one, other) -> None:
    """Bit for bit, types and outputs included."""
    states = one.state_dict(), other.state_dict()
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        assert value.dtype == states[1][name].dtype
        assert torch.equal(value, states[1][name]), name
    assert torch.equal(outputs(one), outputs(other))


def message_of(error) -> str:
    return str(error.value)


# Ours, out and in again.


@pytest.mark.parametrize("changes", EMBEDDINGS.values(), ids=EMBEDDINGS.keys())
@pytest.mark.parametrize(("position", "arguments"), POSITIONS)
def test_an_exported_model_comes_back_bit_for_bit(tmp_path, position, arguments, changes):
    model, description = described(position, arguments, **changes)
    export(model, description, tmp_path / "model.safetensors")
    loaded, same = load_foreign(tmp_path / "model.safetensors")
    assert same == description
    assert type(loaded.position) is position
    assert not loaded.training
    assert_same(model, loaded)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_type_of_the_parameters_is_kept(tmp_path, dtype):
    model, description = described(dtype=dtype)
    export(model, description, tmp_path / "model.safetensors")
    assert_same(model, load_foreign(tmp_path / "model.safetensors")[0])


def test_what_no_parameter_shows_is_kept(tmp_path):
    changes = {"dropout": 0.25, "attention_dropout": 0.5}
    vocabulary = {"unit": "word", "lines": ["<eos>", "ein„Wort“", *map(str, range(11))]}
    model, description = described(**changes)
    export(model, description | {"vocabulary": vocabulary}, tmp_path / "model.safetensors")
    loaded, same = load_foreign(tmp_path / "model.safetensors")
    assert (loaded.dropout.p, loaded.layers[1].attention.dropout.p) == (0.25, 0.5)
    assert loaded.position.key_length == 64
    assert same["vocabulary"] == vocabulary


def test_a_model_that_is_not_as_described_is_not_written(tmp_path):
    path = tmp_path / "model.safetensors"
    model, description = described()
    for part, changes, expected in [
        ("model", {"n_layer": 3}, r"missing: layers\.2\.attention\.key_value\.weight"),
        ("model", {"d_inner": 21}, r"feed_forward\.0\.weight has the shape \[20, 12\], the model's has \[21"),
        ("model", {"widht": 3}, "widht"),
        ("position", {"_target_": "txl.model.AlibiPosition"}, r"unknown: position\.distance_keys"),
        ("position", {"_target_": "somewhere.Position"}, "somewhere.Position is not a class of txl.model"),
    ]:
        wrong = description | {part: description[part] | changes}
        with pytest.raises(ValueError, match=expected):
            export(model, wrong, path)
    with pytest.raises(ValueError, match="has the parts model, position"):
        export(model, description | {"optimizer": {}}, path)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        export(model, description, tmp_path / "model.bin")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [SafetensorError("the disk is full"), KeyboardInterrupt()])
def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch, error):
    path = tmp_path / "model.safetensors"
    export(*described(), path)
    before = path.read_bytes()

    def broken(tensors, part, metadata):
        Path(part).write_bytes(b"half")
        raise error

    monkeypatch.setattr(files, "save_file", broken)
    with pytest.raises((OSError, KeyboardInterrupt)):
        export(*described(n_layer=1), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        export(*described(), tmp_path / "nowhere" / "model.safetensors")


def rewritten(folder, change):
    """An exported file whose tensors and description were changed."""
    path = folder / "model.safetensors"
    export(*described(), path)
    tensors, metadata = read_safetensors(path)
    description = json.loads(metadata["txl"])
    change(tensors, description)
    write_safetensors(path, tensors, {**metadata, "txl": json.dumps(description)})
    return path


@pytest.mark.parametrize(("change", "expected"), [
    (lambda t, d: t.pop("position.u"), "missing: position.u$"),
    (lambda t, d: t.update(extra=torch.zeros(1)), "unknown: extra$"),
    (lambda t, d: t.update({"position.u": torch.zeros(3)}), r"position\.u has the shape \[3\], the model's"),
    (lambda t, d: t.update({"position.u": t["position.u"].half()}), "of one floating type"),
    (lambda t, d: d.pop("position"), "parts model, position and optionally reading, vocabulary, data, not"),
    (lambda t, d: d["model"].update(n_layer="two"), "does not fit its class"),
    (lambda t, d: d["model"].update(n_head=0), "n_head must be positive"),
    (lambda t, d: d.update(model=3), "model: expected arguments and a _target_"),
])  # fmt: skip
def test_an_exported_file_that_does_not_fit_is_refused(tmp_path, change, expected):
    with pytest.raises(ValueError, match=expected):
        load_foreign(rewritten(tmp_path, change))


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("part", ["model", "position"])
def test_a_file_from_elsewhere_cannot_have_anything_imported(tmp_path, monkeypatch, part, trust):
    monkeypatch.syspath_prepend(tmp_path)
    trace = tmp_path / "trace"
    (tmp_path / "planted.py").write_text(f"open({str(trace)!r}, 'w')\nclass Thing: pass\n")
    path = rewritten(tmp_path, lambda t, d: d[part].update(_target_="planted.Thing"))
    with pytest.raises(ValueError, match=r"planted.Thing is not a class of txl.model"):
        load_foreign(path, trust=trust)
    assert not trace.exists()


@pytest.mark.parametrize("target", ["txl.model.Memory", "txl.model.transformer.nn", "txl.model.Nothing",
                                    "txl.model.nothing.Position", "txl.modelling.Position"])  # fmt: skip
def test_only_position_encodings_are_positions(tmp_path, target):
    with pytest.raises(ValueError, match=f"position: {target} (is not|cannot be)"):
        load_foreign(rewritten(tmp_path, lambda t, d: d["position"].update(_target_=target)))


def test_a_safetensors_of_others_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    for metadata, expected in [
        ({}, "txl_format None, expected 1.*pass its directory"),
        ({"txl_format": "2"}, "txl_format 2, expected 1"),
        ({"txl_format": "1"}, "is missing or damaged"),
        ({"txl_format": "1", "txl": "{"}, "is missing or damaged"),
        ({"txl_format": "1", "txl": "[]"}, "has the parts model, position"),
    ]:
        write_safetensors(path, {"weight": torch.zeros(2)}, metadata)
        with pytest.raises(ValueError, match=expected):
            load_foreign(path)


# Pickles.


class Trap(torch.nn.Linear):
    """A model whose unpickling leaves a trace."""

    def __init__(self, trace: Path) -> None:
        super().__init__(2, 2)
        self.trace = str(trace)

    def __setstate__(self, state):
        Path(state["trace"]).touch()
        super().__setstate__(state)


class Payload:
    """An object whose unpickling runs what it likes."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self):
        return exec, (f"open({str(self.trace)!r}, 'w').close()",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "as of 2019"])
@pytest.mark.parametrize("kind", ["model", "payload"])
def test_a_pickled_model_is_refused_and_not_run(tmp_path, kind, zipped):
    trace, path = tmp_path / "trace", tmp_path / "model.pt"
    content = Trap(trace) if kind == "model" else {"weight": torch.zeros(2), "more": Payload(trace)}
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(PickledObjectError) as error:
        load_foreign(path, {"n_token": 2})
    assert not trace.exists(), "it was run"
    assert ("Trap" if kind == "model" else "exec") in message_of(error)
    lines = [line.strip() for line in message_of(error).splitlines()]
    assert 'import torch; model = torch.load("model.pt")' in lines
    assert 'torch.save(model.state_dict(), "model-state.pt")' in lines
    torch.load(path, weights_only=False)
    assert trace.exists(), "the trap does not work, the test shows nothing"


# Runs.


class OwnPosition(PositionEncoding):
    """A position encoding of a user's own."""


def checkpoint_of(position: str = "txl.model.RelativePosition", **changes) -> tuple[TransformerXL, dict]:
    """A model and what a run would keep of it: the settings, without what the program adds."""
    made = RelativePosition if position.startswith("txl") else OwnPosition
    model = small_model(position=made, **changes)
    settings = {"_target_": "txl.model.TransformerXL", **SMALL, **changes}
    del settings["vocabulary"]
    reading = {"batch_size": 2, "segment_length": 24, "attention_length": None, "loss": "full"}
    checkpoint = {
        "state_dict": {f"model.{name}": value for name, value in model.state_dict().items()},
        "global_step": 3,
        "txl": {
            "config": {
                "name": "small",
                "model": settings,
                "position": {"_target_": position},
                "training": reading | {"memory_length": 40},
                "evaluation": reading | {"memory_length": 5, "attention_length": 6, "clamp_length": 3},
            },
            "data": {"name": "text"},
            "vocabulary": {"unit": "word", "lines": [str(i) for i in range(SMALL["vocabulary"])]},
        },
    }
    return model, checkpoint


def test_the_checkpoint_of_a_run_is_all_it_takes(tmp_path):
    model, checkpoint = checkpoint_of(cutoffs=[4], dropout=0.1)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    loaded, description = load_foreign(tmp_path / "last.ckpt")
    assert_same(model, loaded)
    assert loaded.position.key_length == 64
    assert description["reading"] == READING | {"segment_length": 24, "clamp_length": 3}
    assert description["vocabulary"]["lines"][12] == "12"
    export(loaded, description, tmp_path / "model.safetensors")
    again, same = load_foreign(tmp_path / "model.safetensors")
    assert same == description
    assert_same(model, again)


def test_a_run_directory_gives_its_best_checkpoint_or_its_last(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match=r"neither .* config\.json, nor .* checkpoints/best\.ckpt or"):
        load_foreign(tmp_path)
    for name, layers in [("last", 1), ("best", 3)]:
        _, checkpoint = checkpoint_of(n_layer=layers)
        torch.save(checkpoint, tmp_path / "checkpoints" / f"{name}.ckpt")
        assert load_foreign(tmp_path)[0].n_layer == layers


def test_a_class_of_ones_own_needs_trust(tmp_path):
    target = f"{OwnPosition.__module__}.OwnPosition"
    model, checkpoint = checkpoint_of(target)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=f"{target} is not a class of txl.model.*pass trust=True"):
        load_foreign(tmp_path / "last.ckpt")
    loaded, description = load_foreign(tmp_path / "last.ckpt", trust=True)
    assert_same(model, loaded)
    with pytest.raises(ValueError, match=r"is not a class of txl.model"):
        export(loaded, description, tmp_path / "model.safetensors")


@pytest.mark.parametrize(("change", "expected"), [
    (lambda c: c["state_dict"].pop("model.position.u"), "missing: position.u$"),
    (lambda c: c["state_dict"].update({"model.x": torch.zeros(1)}), "unknown: x$"),
    (lambda c: c["state_dict"].update({"x": torch.zeros(1)}), "unknown: x$"),
    (lambda c: c["state_dict"].update({"model.position.u": torch.zeros(3)}), r"has the shape \[3\]"),
    (lambda c: c["txl"]["vocabulary"]["lines"].append("more"), r"has the shape \[13"),
    (lambda c: c.pop("txl"), "is a checkpoint, but not of a run of txl: it lacks 'txl'"),
    (lambda c: c["txl"]["config"].pop("position"), "it lacks 'position'"),
    (lambda c: c["txl"]["config"]["model"].update(depth=3), "does not fit its class: .*depth"),
])  # fmt: skip
def test_a_checkpoint_that_does_not_fit_is_refused(tmp_path, change, expected):
    _, checkpoint = checkpoint_of()
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(ValueError, match=expected):
        load_foreign(tmp_path / "last.ckpt")


def test_a_run_that_was_trained_is_exported_and_read_back(train, text_file, tmp_path):
    assert train(*TINY, f"data.path={text_file}").returncode == 0
    model, description = load_foreign(train.run_directory)
    best = torch.load(train.run_directory / "checkpoints" / "best.ckpt", weights_only=True)
    for name, value in model.state_dict().items():
        assert torch.equal(value, best["state_dict"][f"model.{name}"])
    export(model, description, tmp_path / "model.safetensors")
    again, same = load_foreign(tmp_path / "model.safetensors")
    assert same == description
    assert_same(model, again)


# Files that are nothing of all this.


def test_what_is_not_there_is_said_to_be_not_there(tmp_path):
    for name in ("nothing", "nothing.safetensors", "nothing.ckpt"):
        with pytest.raises(FileNotFoundError, match=f"{name} does not exist$"):
            load_foreign(tmp_path / name)
    with pytest.raises(FileNotFoundError, match=r"has a config\.json, nor"):
        load_foreign(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "last.ckpt"])
def test_a_damaged_file_is_one_clear_line(tmp_path, name):
    path = tmp_path / name
    if name == "model.safetensors":
        export(*described(), path)
    else:
        torch.save(checkpoint_of()[1], path)
    whole = path.read_bytes()
    for content in (
        b"",
        whole[:-100],
        whole[: len(whole) // 2],
        b"hello\n" * 50,
        pickle.dumps("hello", protocol=2),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"{name} is damaged or ") as error:
            load_foreign(path)
        assert "\n" not in message_of(error)
        assert "weights_only" not in message_of(error), "advice to read it without protection"


@pytest.mark.parametrize(("content", "expected"), [
    ([torch.zeros(2)], "holds a list, not a state_dict"),
    (torch.zeros(2), "holds a Tensor, not a state_dict"),
    ({}, "it is empty"),
    ({"model": {}, "args": 3, "weight": torch.zeros(2)}, "these are not tensors: model, args"),
])  # fmt: skip
def test_a_file_without_a_state_dict_is_refused(tmp_path, content, expected):
    torch.save(content, tmp_path / "state.pt")
    with pytest.raises(ValueError, match=expected):
        load_foreign(tmp_path / "state.pt", {"n_token": 2})
