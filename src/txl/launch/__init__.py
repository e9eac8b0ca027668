"""Which process this is, starting the others, and the one protocol for stopping them."""
