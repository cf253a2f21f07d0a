"""Data for training and looking at models: token shards (`text`), pictures (`images`), word pairs and GLUE tasks."""
