"""Searches for good settings: `plan` says which run is next, `trials` keeps the table, `finals` the runs that count."""
