"""The parts of every experiment: experiment, claims, results, tables, drawing, store, engines, report."""
