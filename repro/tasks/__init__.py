"""The two tasks of the paper as Lightning modules: image classification and multilingual translation."""
