"""What all experiments run in: cells and parts that are kept, rows, checks, processes, turns, progress."""
