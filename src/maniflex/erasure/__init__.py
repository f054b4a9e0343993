"""Erasing what is kept of a person: which records are theirs, and every place that repeats them."""
