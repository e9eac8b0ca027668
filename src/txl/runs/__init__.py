"""A run from settings to results: its directory, what is assembled for it, the model it leaves."""
