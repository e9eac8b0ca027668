"""The comparison with reference values: it passes what agrees and fails whatever does not."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import verb
from txl.interop.authors_options import describe
from txl.interop.authors_parameters import from_authors, to_authors
from txl.interop.description import build
from txl.interop.files import NamesError
from txl.interop.parity import Reference, compare
from txl.model import blocked
from txl.model.transformer import ATTENTION_BACKENDS

# The values of the authors' code, where they are at hand: TXL_REFERENCE names their folder.
FILES = sorted(Path(os.environ.get("TXL_REFERENCE", "absent")).glob("*.npz"))

BASE = {
    "n_token": 31, "n_layer": 2, "n_head": 3, "d_model": 12, "d_head": 5, "d_inner": 17, "attn_type": 0,
    "tgt_len": 4, "ext_len": 0, "mem_len": 6, "clamp_len": -1, "same_length": False, "cutoffs": [],
    "div_val": 1, "tie_projs": [False], "pre_lnorm": False, "d_embed": 12,
}  # fmt: skip
ADAPTIVE = {"cutoffs": [7, 19], "tie_projs": [False, True, True]}
CASES = {
    "relative": {},
    "half loss with memory": {"ext_len": 2},
    "projected": {"d_embed": 8},
    "adaptive, projected": {"d_embed": 8, **ADAPTIVE},
    "adaptive, divided": {"div_val": 2, **ADAPTIVE},
    "shaw, clamped": {"attn_type": 1, "mem_len": 11, "clamp_len": 5},
    "shaw, half loss": {"attn_type": 1, "ext_len": 4, "mem_len": 0},
    "sinusoidal, half loss": {"attn_type": 2, "ext_len": 4, "mem_len": 0},
    "learned, half loss": {"attn_type": 3, "ext_len": 4, "mem_len": 0, "d_head": 4},
}


def write(path: Path, **changes) -> dict[str, np.ndarray]:
    """Write a file in the format with the model's own values, to see how files are read and compared."""
    config, batch, segments = BASE | changes, 2, 5
    torch.manual_seed(0)
    model = build(describe(config)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    total = config["ext_len"] + segments * config["tgt_len"] + 1
    arrays = {
        "config": np.array(json.dumps(config)),
        "tokens": torch.randint(config["n_token"], (batch, total)).numpy(),
        "nll": np.zeros((batch, segments * config["tgt_len"])),
    }
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    arrays |= {f"param/{name}": value.numpy().copy() for name, value in to_authors(model, named).items()}
    np.savez(path, **arrays)
    reference = Reference(path)
    model = reference.model.eval()
    memory, scores = reference.start(), []
    with torch.no_grad():
        for segment in range(segments):
            score, _, memory = reference.read(segment, memory)
            scores.append(score)
    arrays["nll"] = torch.cat(scores, dim=1).numpy()
    for index, states in enumerate(memory.states):
        arrays[f"final_memory/{index}"] = states.numpy()
    with torch.no_grad():
        *_, memory = reference.read(0, reference.start())
    score, *_ = reference.read(1, memory)
    score.mean().backward()
    gradients = to_authors(model, {name: p.grad for name, p in model.named_parameters()})
    arrays |= {f"grad/{name}": value.numpy().copy() for name, value in gradients.items()}
    np.savez(path, **arrays)
    return arrays


@pytest.mark.skipif(not FILES, reason="the authors' reference values are not at hand (TXL_REFERENCE)")
@pytest.mark.parametrize("attention", ATTENTION_BACKENDS)
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_authors_values_are_met(path, attention, monkeypatch):
    monkeypatch.setattr(blocked, "QUERIES", 3)  # their segments are short
    comparison = compare(path, attention)
    assert comparison.passed, comparison.largest
    assert comparison.largest["scores"] > 0  # something was compared


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_file_is_read(tmp_path, case):
    write(tmp_path / "file.npz", **CASES[case])
    comparison = compare(tmp_path / "file.npz")
    assert comparison.passed
    assert comparison.largest["gradients"] is not None


@pytest.mark.parametrize("attention", ATTENTION_BACKENDS)
@pytest.mark.parametrize("kind", ["nll", "final_memory/1", "grad/r_w_bias", "param/r_r_bias"])
def test_a_value_that_is_off_fails(tmp_path, kind, attention):
    arrays = write(tmp_path / "file.npz")
    arrays[kind] = arrays[kind].copy()
    arrays[kind].flat[3] += 1e-3 if not kind.startswith("param") else 0.5
    np.savez(tmp_path / "file.npz", **arrays)
    assert not compare(tmp_path / "file.npz", attention).passed


def test_a_missing_or_unknown_parameter_is_listed_and_nothing_loaded():
    model = build(describe(BASE))
    named = {name: torch.full_like(parameter, 7.0) for name, parameter in model.named_parameters()}
    tensors = to_authors(model, named)
    del tensors["r_w_bias"], tensors["layers.1.pos_ff.CoreNet.0.bias"]
    tensors["surprise"] = torch.zeros(1)
    with pytest.raises(NamesError, match=r"missing: layers\.1\.pos_ff.*, r_w_bias; unknown: surprise"):
        from_authors(model, tensors)
    assert not any((parameter == 7.0).any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_type": 2}, "cached states are never altered"),
        ({"attn_type": 3, "mem_len": 0, "pre_lnorm": True}, "normalizes keys and values but not queries"),
        ({"attn_type": 4}, "none of the authors' 0, 1, 2, 3"),
    ],
)
def test_what_the_model_does_not_do_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        build(describe(BASE | changes))


def test_the_command_prints_a_table_and_fails_if_one_file_does(tmp_path):
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    arrays = write(good)
    arrays["nll"] = arrays["nll"] + 1e-3
    np.savez(bad, **arrays)
    (tmp_path / "empty.npz").write_bytes(b"")

    done = verb("parity", good)
    assert done.returncode == 0, done.stderr
    assert "same" in done.stdout
    done = verb("parity", good, bad, tmp_path / "empty.npz", tmp_path / "absent.npz")
    assert done.returncode == 1
    assert "DIFFERS" in done.stdout
    assert "same" in done.stdout
    assert done.stderr.count("is not a file of reference values") == 2


def test_a_narrow_table_cuts_no_name_short(tmp_path):
    path = tmp_path / f"{'long_' * 12}name.npz"
    write(path)
    shown = verb("parity", path).stdout
    assert "name" in shown
    assert "…" not in shown
