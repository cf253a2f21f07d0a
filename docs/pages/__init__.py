"""The pages that `docs/build.py` makes: each module here writes one of them, `site` holds what they share."""
