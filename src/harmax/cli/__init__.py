"""The command line: one small file a group of verbs."""
