"""Files → records: one engine for the import of the panel and of the command line."""
