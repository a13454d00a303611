"""Reproduction benchmark suite of the paper "GPipe" (Huang et al., 2019; arXiv 1811.06965)."""

__version__ = "0.1.0"
