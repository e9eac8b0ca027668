"""`txl import` and `txl export`, as a user runs them."""

import json

import pytest
import torch

from conftest import small_model, verb
from interop.test_parity import BASE
from txl.interop.authors_options import describe
from txl.interop.authors_parameters import to_authors
from txl.interop.checkpoints import load_foreign
from txl.interop.description import build


@pytest.fixture
def authors(tmp_path):
    """A state_dict of the authors' code and their options."""
    torch.manual_seed(0)
    model = build(describe(BASE))
    named = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.save(to_authors(model, named), tmp_path / "state.pt")
    (tmp_path / "options.json").write_text(json.dumps(BASE))
    return model, tmp_path


def test_a_state_dict_of_the_authors_becomes_ours_and_goes_out_again(authors):
    model, folder = authors
    done = verb(
        "import", folder / "state.pt", folder / "ours.safetensors", "--config", folder / "options.json"
    )
    assert done.returncode == 0, done.stderr
    assert "parameters" in done.stdout
    done = verb("export", folder / "ours.safetensors", folder / "again.safetensors")
    assert done.returncode == 0, done.stderr
    loaded, _ = load_foreign(folder / "again.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(dict(loaded.named_parameters())[name], parameter)


def test_what_cannot_be_taken_is_a_clear_line_and_nothing_is_written(authors):
    _, folder = authors
    target = folder / "out.safetensors"
    torch.save(small_model(), folder / "model.pt")
    (folder / "bad.json").write_text("{")
    for words, expected in {
        (folder / "state.pt", target): "which holds no options; give its run's as config",
        (folder / "absent", target): "absent does not exist",
        (folder / "model.pt", target): "torch.save(model.state_dict()",
        (
            folder / "state.pt",
            folder / "out.bin",
            "--config",
            folder / "options.json",
        ): "must end in .safetensors",
        (folder / "state.pt", target, "--config", folder / "bad.json"): "bad.json is not JSON",
        (folder / "state.pt", folder / "state.pt"): "exists already; choose another name or remove it",
    }.items():
        done = verb("import", *words)
        assert done.returncode == 1
        assert expected in done.stderr
        assert "Traceback" not in done.stderr
        assert not target.exists()
