"""Loggers: `metrics.jsonl`, and one file for each option of `conf/logger/`."""
