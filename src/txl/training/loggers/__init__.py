"""Loggers beside `metrics.jsonl`: each is a file here and an option of `conf/logger/`."""
