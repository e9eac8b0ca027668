"""txl: train, measure and take apart segment-recurrent language models."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("txl")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
