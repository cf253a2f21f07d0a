"""The trials of `make torture`: kills, pairs of processes, full disks, lost power, hostile files, drawn calls.

    make torture                                        every trial, one minute each
    make torture TRIALS="draws kill-pretrain" MINUTES=30
    make torture TRIALS=draws SEED=123 COUNT=1          one case again, with all that it says

The table of trials, a file of JSON lines, is the program's state: a later call goes on with the next seeds, so that
pieces add up to long runs. The outcome of a case is a function of its seed, up to the moment at which a kill arrives.
"""
