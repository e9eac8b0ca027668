"""Typed settings, their composition, and errors that suggest similar names."""
