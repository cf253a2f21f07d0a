"""What every experiment is made of: experiment, claims, results, tables, drawing, store, engines, report."""
