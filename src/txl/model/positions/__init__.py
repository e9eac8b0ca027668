"""Position encodings, one file each; `base.py` defines their interface."""
