"""Data for training and for analysis: token shards (`text`), pictures (`images`), word pairs and GLUE tasks."""
