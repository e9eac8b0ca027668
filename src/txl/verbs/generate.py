"""`txl generate`: continue a prompt, as in the paper's Appendix E."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txl.terminal import progress_bar
from txl.verbs import runner

if TYPE_CHECKING:
    from txl.runs.trained import TrainedModel

MIN_TEMPERATURE = 1e-6  # below, dividing logits by it can overflow
SEPARATOR = "---"  # the line between the prompts of a file


@dataclass
class Settings(runner.PrecisionSettings):
    """Settings of the verb. Without prompt, file or position, a random position of the split is continued.

    Attributes:
        prompt: the text to continue
        file: a file with the text, or with several, separated by lines of ---
        position: random, or a number: continue the text of a split from this token
        split: test, valid or train of the run's corpus, for position (test)
        context: tokens read before the position, the paper's longest (512)
        tokens: how many to generate (200)
        memory_length: slots of the memory; null for the attention length of the run's evaluation
        top_k: sample from the k most probable tokens, 40 as in the paper; null for all
        top_p: sample from the fewest tokens with this total probability; null for all
        temperature: divides the logits (1)
        greedy: true to take the most probable token always
        seed: of sampling and of the random position (1)
        samples: how many for each prompt (1)
        out: path of the JSON, beside which the .md goes; null for evaluations/ of the run
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

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.prompt, self.file, self.position)) > 1:
            raise ValueError("prompt, file and position exclude each other; give one of them")
        runner.check_at_least(self, 1, "context", "tokens", "top_k", "samples")
        runner.check_at_least(self, 0, "memory_length")
        runner.check_position(self.position)
        if not MIN_TEMPERATURE <= self.temperature < float("inf"):
            raise ValueError(
                f"temperature={self.temperature} must be {MIN_TEMPERATURE} or more; greedy=true takes the "
                "most probable token"
            )
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed={self.seed} must be from 0 to 2**63 - 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1")
        if self.out is not None and self.out.suffix == ".md":
            raise ValueError(f"out={self.out} is the path of the page; name the JSON, out=….json")


def add_to(verbs: runner.Verbs) -> None:
    description = "continue a prompt, or a position of the test text"
    runner.add_model_verb(verbs, "generate", description, Settings, generate)


def generate(trained: TrainedModel, settings: Settings, path: Path) -> runner.Outcome:
    from txl.runs.trained import inference_context

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


def read_prompts(trained: TrainedModel, settings: Settings) -> tuple[list[list[int]], str | None, str | None]:
    """Return the prompts as ids; for a position in a corpus also how its text continues, and its name.

    Raises:
        ValueError: an empty prompt, unknown symbols, a position outside the text.
    """
    import numpy as np

    if settings.prompt is not None:
        return [encode(trained, settings.prompt)], None, None
    if settings.file is not None:
        return [encode(trained, piece) for piece in split_file(settings.file)], None, None
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


def split_file(file: Path) -> list[str]:
    """Return the prompts of a file, with their line ends, except the last of the file."""
    try:
        text = file.read_bytes().decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"file={file} is no text in UTF-8: {error}") from error
    pieces: list[list[str]] = [[]]
    for line in text.split("\n"):
        if line.removesuffix("\r") == SEPARATOR:
            pieces.append([])
        else:
            pieces[-1].append(line)
    return ["\n".join(piece) for piece in pieces]


def encode(trained: TrainedModel, text: str) -> list[int]:
    """Return a prompt as ids, its words separated as in the corpus; print how many are unknown."""
    vocabulary = trained.known_vocabulary("the prompt")
    if vocabulary.unit == "word":
        from txl.data.punctuation import as_corpus

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
    if vocabulary.unit == "word":
        from txl.data.punctuation import as_written

        return as_written(text)
    return text


def memory_length_for(trained: TrainedModel, settings: Settings) -> int:
    if settings.memory_length is not None:
        return settings.memory_length
    reading = trained.description.get("reading") or {}
    longest = (reading.get("memory_length") or 0) + (reading.get("segment_length") or 1)
    return min(longest, reading.get("attention_length") or longest) - 1


def draw_samples(
    trained: TrainedModel, prompts: list[list[int]], settings: Settings, memory_length: int
) -> tuple[list[list[list[int]]], bool]:
    """Return the samples of each prompt, and whether they are complete; print a single one as it grows."""
    import torch

    from txl.evaluation.generation import generate, left_pad

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
        parts += ["### How the text itself goes on", quoted(result["reference"])]
    return "\n\n".join(parts) + "\n"


def quoted(text: str) -> str:
    """Return a text in a Markdown block whose fence does not occur in it."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}"
