"""Experiments: one module per table or figure, and what they share. They write rows and know nothing of reports.

Nothing is imported here, so that reading rows needs no torch.
"""
