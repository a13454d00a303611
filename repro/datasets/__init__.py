"""Data: packaged sets fetched from package registries, their readers, and the paper's published tables.

Nothing is imported here, so that ``repro --help`` stays quick: import the module that you need, for example
``repro.datasets.images`` or ``repro.datasets.translation``.
"""
