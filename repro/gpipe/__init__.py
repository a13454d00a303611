"""The GPipe strategy: stages, micro-batches, schedules and re-materialization for PyTorch Lightning."""
