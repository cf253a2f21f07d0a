"""The paper's algorithmic section: five tasks, four small models, two protocols.

`algorithmic` (runs.py) trains; the figures for which its runs are enough are views of it, one file each. protocols.py
says what the two protocols are, training.py turns cells into stacked runs and back, anchors.py has the authors'
numbers.
"""
