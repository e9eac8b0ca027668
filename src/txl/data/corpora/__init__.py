"""Text of any size to arrays of token ids in the cache."""
