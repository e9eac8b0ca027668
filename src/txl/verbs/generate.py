"""`txl generate`: continue a prompt, as in the paper's Appendix E."""

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from txl.data.punctuation import as_corpus, as_written
from txl.evaluation.generation import generate, left_pad
from txl.runs.trained import TrainedModel, inference_context
from txl.terminal import progress_bar
from txl.verbs import runner
from txl.verbs.settings import GenerateSettings

SEPARATOR = r"(?m)\n?^---\r?$\n?"  # the line between the prompts of a file, with the line ends around it


def run(trained: TrainedModel, settings: GenerateSettings, path: Path) -> runner.Outcome:
    prompts, reference, place = read_prompts(trained, settings)
    memory_length = memory_length_for(trained, settings)
    with inference_context(trained.model, settings.device, settings.precision):
        samples, complete = draw_samples(trained, prompts, settings, memory_length)
    sampling = "tokens", "top_k", "top_p", "temperature", "greedy", "seed", "samples"
    result: dict[str, Any] = {
        "schema": 1,
        "verb": "generate",
        "source": str(trained.source),
        "status": "completed" if complete else "interrupted",
        "settings": {key: getattr(settings, key) for key in sampling},
        "memory_length": memory_length,
        "place": place,
        "texts": [
            {
                "prompt": decode(trained, prompt),
                "samples": [decode(trained, ids) for ids in of_prompt],
                "ids": of_prompt,
            }
            for prompt, of_prompt in zip(prompts, samples, strict=True)
        ],
        "reference": reference,
    }
    runner.write_result(path, result)
    page = path.with_suffix(".md")
    page.write_text(as_markdown(result), "utf-8")
    message = f"interrupted after {len(samples[0][0]):,} tokens; the files hold them"
    return runner.Outcome(None, [path, page], None if complete else message)


def read_prompts(
    trained: TrainedModel, settings: GenerateSettings
) -> tuple[list[list[int]], str | None, str | None]:
    """Return the prompts as ids; for a position in a corpus also how its text continues, and its name.

    Raises:
        ValueError: an empty prompt, unknown symbols, a position outside the text.
    """
    if settings.prompt is not None:
        return [encode(trained, settings.prompt)], None, None
    if settings.file is not None:
        try:
            whole = settings.file.read_bytes().decode().removesuffix("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"file={settings.file} is not text in UTF-8: {error}") from error
        return [encode(trained, piece) for piece in re.split(SEPARATOR, whole)], None, None
    text = trained.text(settings.split)
    tokens = text.tokens
    if settings.position in (None, "random"):
        position = int(np.random.default_rng(settings.seed).integers(1, len(tokens)))
    else:
        position = int(settings.position)
    if not 1 <= position <= len(tokens):
        raise ValueError(
            f"position={position} must be from 1 to {len(tokens):,}, the tokens of {settings.split}"
        )
    reference = decode(trained, tokens[position : position + settings.tokens].tolist())
    prompt = tokens[max(0, position - settings.context) : position].tolist()
    return [prompt], reference, f"{text.title}, token {position:,}"


def encode(trained: TrainedModel, text: str) -> list[int]:
    """Return a prompt as ids, its words separated as in the corpus; print how many are unknown."""
    vocabulary = trained.known_vocabulary("the prompt")
    if vocabulary.unit == "word":
        text = as_corpus(text, vocabulary)
    ids = trained.encode(text.encode(), "the prompt", ends=False)
    if not len(ids):
        raise ValueError("the prompt is empty: the model needs a token to continue")
    unknown = vocabulary.id_of(vocabulary.unknown)
    if unknown is not None and (ids == unknown).any():
        words = dict.fromkeys(word for word in text.split() if vocabulary.id_of(word) is None)
        rate = float((ids == unknown).mean())
        runner.console.print(
            f"{rate:.0%} of the prompt is unknown and read as <unk>: {', '.join(words)}", markup=False
        )
    return ids.tolist()


def decode(trained: TrainedModel, ids: list[int]) -> str:
    """Return ids as text; words with the spacing of plain text."""
    vocabulary = trained.known_vocabulary()
    text = vocabulary.decode(ids).decode(errors="replace")
    return as_written(text) if vocabulary.unit == "word" else text


def memory_length_for(trained: TrainedModel, settings: GenerateSettings) -> int:
    if settings.memory_length is not None:
        return settings.memory_length
    reading = trained.description.get("reading") or {}
    longest = (reading.get("memory_length") or 0) + (reading.get("segment_length") or 1)
    return min(longest, reading.get("attention_length") or longest) - 1


def draw_samples(
    trained: TrainedModel, prompts: list[list[int]], settings: GenerateSettings, memory_length: int
) -> tuple[list[list[list[int]]], bool]:
    """Return the samples of each prompt, and whether they are complete; print a single one as it grows."""
    device = trained.model.embedding.bias.device
    rows = [prompt for prompt in prompts for _ in range(settings.samples)]
    prompt_BL, starts = left_pad([torch.tensor(row, device=device) for row in rows])
    stream = generate(
        trained.model,
        prompt_BL,
        trained.model.empty_memory(len(rows), memory_length),
        (trained.description.get("reading") or {}).get("segment_length") or 128,
        0.0 if settings.greedy else settings.temperature,
        settings.top_k,
        torch.Generator(device).manual_seed(settings.seed),
        settings.top_p,
        starts,
    )
    ids: list[list[int]] = [[] for _ in rows]
    single, complete = len(rows) == 1, True
    printed = decode(trained, rows[0])
    if single:
        print_text(printed, "dim")
    try:
        with progress_bar("generating", settings.tokens, visible=not single) as update:
            for token_B in itertools.islice(stream, settings.tokens):
                for row, token in zip(ids, token_B.tolist(), strict=True):
                    row.append(token)
                if single:
                    text = decode(trained, rows[0] + ids[0]).rstrip("\ufffd")  # an incomplete character
                    print_text(text[len(printed) :], "bold")
                    printed = max(printed, text, key=len)
                update(advance=1)
    except KeyboardInterrupt:
        complete = False
    if single:
        runner.console.print("\n")
    else:
        for prompt, row in zip(rows, ids, strict=True):
            print_text(decode(trained, prompt), "dim")
            print_text(f"⟶{decode(trained, row)}\n", "bold", end="\n")
    return [ids[start : start + settings.samples] for start in range(0, len(ids), settings.samples)], complete


def print_text(text: str, style: str, end: str = "") -> None:
    runner.console.print(text, style=style, end=end, markup=False, soft_wrap=True)


def as_markdown(result: dict[str, Any]) -> str:
    """Return contexts, samples and settings as a page in the layout of the paper's Appendix E."""
    settings = ", ".join(f"{key} {value}" for key, value in result["settings"].items() if value is not None)
    parts = [
        "# Generated text",
        f"Model: `{result['source']}`, memory {result['memory_length']:,}.  \nDrawn: {settings}.",
    ]
    if result["status"] != "completed":
        parts.append("**Interrupted: the samples are shorter than asked for.**")
    for number, text in enumerate(result["texts"], start=1):
        place = f" ({result['place']})" if result["place"] else ""
        parts += [f"## Context {number}{place}", quoted(text["prompt"])]
        for index, sample in enumerate(text["samples"], start=1):
            parts += [f"### Sample {index}", quoted(sample)]
    if result["reference"]:
        parts += ["### The original continuation", quoted(result["reference"])]
    return "\n\n".join(parts) + "\n"


def quoted(text: str) -> str:
    """Return a text in a Markdown block whose fence does not occur in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"
