"""Models with random parameters, for measurements that do not depend on them."""

import torch
from omegaconf import DictConfig, OmegaConf

from txl.model import TransformerXL
from txl.settings.errors import ConfigError
from txl.settings.schema import Config, check
from txl.training.network import check_clamp, network


def untrained(settings: DictConfig) -> tuple[TransformerXL, Config]:
    """Return a model in evaluation mode, with its clamp for evaluation, and its settings.

    No text is read: `data.vocabulary` is the number of tokens.

    Raises:
        ConfigError: impossible settings, or no `data.vocabulary`.
    """
    vocabulary = settings.data.get("vocabulary")
    if not vocabulary:
        raise ConfigError(
            "data.vocabulary, the number of different tokens, is missing, and no text is read to count them; "
            "give data.vocabulary=N"
        )
    if OmegaConf.is_missing(settings.data, "path"):
        settings.data.path = "not read"
    config = check(settings)
    torch.manual_seed(config.seed)
    model = network(config, vocabulary).eval()
    check_clamp(config, model)
    clamp = config.evaluation.clamp_length
    if clamp is not None:
        setattr(model.position, "clamp_length", clamp)  # noqa: B010  of those encodings that have one
    return model, config
