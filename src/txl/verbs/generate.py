"""`txl generate`: what a model writes after a prompt, as in the paper's Appendix E."""

from __future__ import annotations

import argparse
import itertools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl.verbs.common import add_source, check_place, console, result_path, settings, write_result

if TYPE_CHECKING:
    import numpy as np

    from txl.runs.trained import TrainedModel

COLDEST = 1e-6  # temperature: below, logits may be divided to infinity
BETWEEN = "---"  # the line between the prompts of a file


@dataclass
class Generate:
    """The settings of the verb. Without prompt, file or position it is a random position.

    Attributes:
        prompt: the text to go on from
        file: a file with the text, or with several, a line of --- between them
        position: random, or a number: go on from this token of the text of a split
        split: test, valid or train: of the run's own corpus, for position (test)
        context: tokens read before the position, the paper's longest (512)
        tokens: how many to write (200)
        memory_length: slots of the memory; null for the attention length of the run's evaluation
        top_k: only the k likeliest can be drawn, 40 as in the paper; null for all
        top_p: only the fewest that have this probability together; null for all
        temperature: logits are divided by it (1)
        greedy: true to take the likeliest always
        seed: of the random numbers, the random position among them (1)
        samples: how many to write after each prompt (1)
        out: where the JSON goes, and beside it the .md; null for evaluations/ of the run
        precision: auto, 32-true, 64-true, bf16-mixed or 16-mixed
        device: auto, cpu, cuda, cuda:1, …
        trust: true to run code of your own that the run names
    """

    prompt: str | None = None
    file: Path | None = None
    position: str | None = None
    split: str = "test"
    context: int = 512
    tokens: int = 200
    memory_length: int | None = None
    top_k: int | None = 40
    top_p: float | None = None
    temperature: float = 1.0
    greedy: bool = False
    seed: int = 1
    samples: int = 1
    out: Path | None = None
    precision: str = "auto"
    device: str = "auto"
    trust: bool = False

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.prompt, self.file, self.position)) > 1:
            raise ValueError("prompt, file and position exclude each other; say one of them")
        for key in ("context", "tokens", "top_k", "samples"):
            if (value := getattr(self, key)) is not None and value < 1:
                raise ValueError(f"{key}={value} must be positive")
        if not COLDEST <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature} must be {COLDEST} or more; greedy=true takes the likeliest"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**63 - 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        if self.memory_length is not None and self.memory_length < 0:
            raise ValueError(f"memory_length={self.memory_length} must be 0 or more")
        if self.out is not None and self.out.suffix == ".md":
            raise ValueError(f"out={self.out} is where the page goes; name the JSON, out=….json")
        if self.position not in (None, "random") and not self.position.isdecimal():
            raise ValueError(f"position={self.position}: expected random or the number of a token")


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    verb = verbs.add_parser("generate", help="what a model writes after a prompt or a place of its test text")
    add_source(verb, Generate)
    verb.set_defaults(run=_generate)


def _generate(arguments: argparse.Namespace) -> int:
    asked = settings(arguments.overrides, Generate)

    from txl.runs.trained import inference_context, load

    trained = load(arguments.source, asked.trust)
    prompts, reference, place = prompts_of(trained, asked)
    path = result_path(trained.directory, "generate", arguments.overrides, asked.out)
    check_place(path)
    with inference_context(trained.model, asked.device, asked.precision):
        written, whole = drawn(trained, prompts, asked)
    texts = [
        {
            "prompt": shown(trained, prompt),
            "samples": [shown(trained, ids) for ids in samples],
            "ids": samples,
        }
        for prompt, samples in zip(prompts, written, strict=True)
    ]
    result: dict[str, Any] = {
        "schema": 1,
        "verb": "generate",
        "source": str(trained.source),
        "status": "completed" if whole else "interrupted",
        "settings": {
            key: getattr(asked, key)
            for key in ("tokens", "top_k", "top_p", "temperature", "greedy", "seed", "samples")
        },
        "memory_length": slots_of(trained, asked),
        "place": place,
        "texts": texts,
        "reference": reference,
    }
    write_result(path, result)
    page = path.with_suffix(".md")
    page.write_text(as_markdown(result), "utf-8")
    for file in (path, page):
        console.print(os.path.relpath(file), markup=False, soft_wrap=True)
    if not whole:
        console.print(f"interrupted after {len(written[0][0]):,} tokens; the files hold them", style="red")
    return 0 if whole else 130


def prompts_of(trained: TrainedModel, asked: Generate) -> tuple[list[list[int]], str | None, str | None]:
    """Return the prompts as ids, and for a place in a corpus how its text goes on and which place it is.

    Raises:
        ValueError: an empty prompt, unknown symbols, a place outside the text.
    """
    import numpy as np

    if asked.prompt is not None or asked.file is not None:
        text = asked.prompt if asked.prompt is not None else written_in(asked.file)
        pieces, lines = [[]], text.split("\n")
        for line in lines:
            if line.removesuffix("\r") == BETWEEN and asked.file is not None:
                pieces.append([])
            else:
                pieces[-1].append(line)
        return [encoded(trained, "\n".join(piece)) for piece in pieces], None, None
    text = trained.text(asked.split)
    tokens = text.tokens
    place = asked.position
    if place in (None, "random"):
        place = int(np.random.default_rng(asked.seed).integers(1, len(tokens)))
    place = int(place)
    if not 1 <= place <= len(tokens):
        raise ValueError(f"position={place} must be from 1 to {len(tokens):,}, the tokens of {asked.split}")
    after = shown(trained, tokens[place : place + asked.tokens].tolist())
    where = f"{text.title}, token {place:,}"
    return [tokens[max(0, place - asked.context) : place].tolist()], after, where


def written_in(file: Path) -> str:
    """Return the text of a file, its line ends as they are, without the last one."""
    try:
        return file.read_bytes().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"file={file} is no text in UTF-8: {error}") from error


def encoded(trained: TrainedModel, text: str) -> list[int]:
    """Return a prompt as ids, words cut as the vocabulary has them, and say how many are unknown."""
    vocabulary = trained.vocabulary
    if vocabulary is not None and vocabulary.unit == "word":
        from txl.data.punctuation import as_corpus

        text = as_corpus(text, vocabulary)
    ids: np.ndarray = trained.encoded(text.encode(), "the prompt", ends=False)
    if not len(ids):
        raise ValueError("the prompt is empty: the model needs a token to go on from")
    unknown = vocabulary.id_of(vocabulary.unknown)
    if unknown is not None and (ids == unknown).any():
        words = [word for word in text.split() if vocabulary.id_of(word) is None]
        rate, named = float((ids == unknown).mean()), ", ".join(dict.fromkeys(words))
        console.print(f"{rate:.0%} of the prompt is unknown and read as <unk>: {named}", markup=False)
    return ids.tolist()


def slots_of(trained: TrainedModel, asked: Generate) -> int:
    """Return how many states the memory holds."""
    if asked.memory_length is not None:
        return asked.memory_length
    own = trained.description.get("reading") or {}
    reach = (own.get("memory_length") or 0) + (own.get("segment_length") or 1)
    return min(reach, own.get("attention_length") or reach) - 1


def drawn(
    trained: TrainedModel, prompts: list[list[int]], asked: Generate
) -> tuple[list[list[list[int]]], bool]:
    """Return the samples of each prompt, and whether they are whole; a single one is printed as it comes."""
    import torch
    from rich.console import Console
    from rich.progress import track

    from txl.evaluation.generation import generate, left_pad

    device = trained.model.embedding.bias.device
    rows = [torch.tensor(prompt, device=device) for prompt in prompts for _ in range(asked.samples)]
    prompt_BL, starts = left_pad(rows)
    segment = (trained.description.get("reading") or {}).get("segment_length") or 128
    stream = generate(
        trained.model,
        prompt_BL,
        trained.model.empty_memory(len(rows), slots_of(trained, asked)),
        segment,
        0.0 if asked.greedy else asked.temperature,
        asked.top_k,
        torch.Generator(device).manual_seed(asked.seed),
        asked.top_p,
        starts,
    )
    steps, ids, whole = itertools.islice(stream, asked.tokens), [[] for _ in rows], True
    if len(rows) > 1:
        steps = track(steps, "writing", asked.tokens, console=Console(stderr=True), transient=True)
    else:
        console.print(shown(trained, prompts[0]), style="dim", end="", markup=False, soft_wrap=True)
    said = len(shown(trained, prompts[0]))
    try:
        for token_B in steps:
            for row, token in zip(ids, token_B.tolist(), strict=True):
                row.append(token)
            if len(rows) == 1:
                text = shown(trained, prompts[0] + ids[0]).rstrip("\ufffd")  # half of a character is none yet
                console.print(text[said:], style="bold", end="", markup=False, soft_wrap=True)
                said = max(said, len(text))
    except KeyboardInterrupt:
        whole = False
    if len(rows) == 1:
        console.print("\n")
    else:
        for number, row in enumerate(ids):
            console.print(
                shown(trained, rows[number].tolist()), style="dim", end="", markup=False, soft_wrap=True
            )
            console.print(f"⟶{shown(trained, row)}\n", style="bold", markup=False, soft_wrap=True)
    return [ids[begin : begin + asked.samples] for begin in range(0, len(ids), asked.samples)], whole


def shown(trained: TrainedModel, ids: list[int]) -> str:
    """Return ids as people read them."""
    text = trained.vocabulary.decode(ids).decode(errors="replace")
    if trained.vocabulary.unit == "word":
        from txl.data.punctuation import as_written

        return as_written(text)
    return text


def as_markdown(result: dict[str, Any]) -> str:
    """Return contexts, samples and settings as a page, as the paper's Appendix E shows them."""
    said = ", ".join(f"{key} {value}" for key, value in result["settings"].items() if value is not None)
    parts = [
        "# Generated text",
        f"Model: `{result['source']}`, memory {result['memory_length']:,}.  \nDrawn: {said}.",
    ]
    if result["status"] != "completed":
        parts.append("**Interrupted: the samples are shorter than asked for.**")
    for number, text in enumerate(result["texts"], start=1):
        place = f" ({result['place']})" if result["place"] else ""
        parts += [f"## Context {number}{place}", quoted(text["prompt"])]
        for index, sample in enumerate(text["samples"], start=1):
            parts += [f"### Sample {index}", quoted(sample)]
    if result["reference"]:
        parts += ["### How the text itself goes on", quoted(result["reference"])]
    return "\n\n".join(parts) + "\n"


def quoted(text: str) -> str:
    """Return a text in a Markdown block that nothing in it can end."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"
