"""Train a Transformer-XL on real text, evaluate it on the test split, and write results.json.

python train.py                         # a small model on 6 MB of Wikipedia, minutes on two CPU cores
python train.py resume=outputs/…        # go on with a run that was interrupted
python train.py --help                  # every group, option and setting
"""

from pathlib import Path

from omegaconf import DictConfig

from txl.program import command
from txl.runs import assemble, start
from txl.runs.finish import finish


@command(config_path=Path(__file__).parent / "conf", config_name="train")
def train(settings: DictConfig) -> None:
    """Compose → build → fit → test → results.json."""
    if start.started_processes(settings):
        return
    with assemble.run(settings) as run:
        config = assemble.config(settings)
        corpus = assemble.corpus(config, run)
        module = assemble.module(config, corpus, run)
        streams = assemble.streams(config, corpus)
        trainer = assemble.trainer(config, module, corpus, streams, run)

        run.preparing = False
        trainer.fit(module, streams["train"], streams["valid"], ckpt_path=run.resumed_from)

        finish(config, module, corpus, streams, trainer, run)


if __name__ == "__main__":
    train()
