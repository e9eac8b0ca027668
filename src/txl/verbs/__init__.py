"""Everything except training: one file per verb, each with `run`; `arguments.py` defines the command line."""
