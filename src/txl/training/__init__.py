"""Training with Lightning: the module, optimizers, schedules, callbacks and loggers."""
