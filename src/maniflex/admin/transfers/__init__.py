"""Imports, exports and changes of many: what one person asked for, done in batches, and its pages."""
