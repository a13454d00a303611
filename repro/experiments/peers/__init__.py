"""Target ``peers``: this engine beside other pipelines."""
