"""The command line beside training: one file a verb, each with `run`; `arguments.py` has their words."""
