"""The command line: one small file per group of verbs."""
