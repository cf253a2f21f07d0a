"""Data: the paper's algorithmic tasks, as numpy arrays of tokens.

>>> from harmax_lab.tasks import audit, find_task, make_split
>>> task = find_task("genealogy", protocol="authors")
>>> print(audit(make_split(task, seed=0)))
train: 800 rows, 317 distinct; test: 200 rows, 156 distinct, 86.0% of the rows also in train; contradictions: 0
"""

from harmax_lab.tasks.algorithmic import TASKS, audit_table, find_task, sized
from harmax_lab.tasks.dataset import PROTOCOLS, Audit, Split, Structure, Task, audit, make_split

__all__ = [
    "PROTOCOLS",
    "TASKS",
    "Audit",
    "Split",
    "Structure",
    "Task",
    "audit",
    "audit_table",
    "find_task",
    "make_split",
    "sized",
]
