"""Which rules bind rows and fields of a model: scopes, policies, redactions, reach, checks, transforms."""
