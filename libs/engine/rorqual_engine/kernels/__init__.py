"""Compiled CPU kernels (numba). Their plain torch twins are in ref/."""
