"""Which row of the batch reads which tokens, in which order."""
