"""GPT-2 with either head: what a trained model's embedding, layers and sentences show."""
