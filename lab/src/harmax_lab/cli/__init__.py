"""The verbs that harmax-lab adds to the command `harmax`."""

VERBS: dict[str, tuple[str, str]] = {
    "list": ("harmax_lab.cli.listing:List", "List the experiments."),
    "run": ("harmax_lab.cli.run:RunExperiment", "Run one experiment, or what is left of it."),
    "reproduce": ("harmax_lab.cli.run:Reproduce", "Run every experiment, then write the report."),
    "search": ("harmax_lab.cli.search:Search", "Search for good settings, or go on with a search."),
    "watch": ("harmax_lab.cli.watch:Watch", "Train a task with either loss and film what the models learn."),
    "analyze": ("harmax_lab.cli.analyze:Analyze", "Measure the stored embeddings of `algorithmic`, or film them."),
    "report": ("harmax_lab.cli.report:WriteReport", "Write one self-contained HTML file from stored runs."),
}
