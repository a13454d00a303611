"""The models that are run or simulated, and what their layers, the accelerators and the links take."""
