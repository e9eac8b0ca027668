"""Training with Lightning: the module, its settings, what one sees while it runs, and the run directory."""
