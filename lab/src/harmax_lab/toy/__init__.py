"""Small enough to see everything: three cases in the plane, and the paper's theorems checked by numbers."""
