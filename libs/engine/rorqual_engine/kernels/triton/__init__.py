"""Triton kernels. Each function promises what its twin of the same name in ref/ promises.

Nothing here is imported before a device asks for it (see kernels/registry.py): importing triton
costs a second, and a machine without an accelerator does not need it. With TRITON_INTERPRET=1 in
the environment, set before triton is first imported, all of them run on the CPU as well.
"""
