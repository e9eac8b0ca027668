"""Position encodings, one file each; `base.py` says what one may do."""
