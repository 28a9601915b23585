"""Triton kernels. Each function promises what its twin of the same name in ref/ promises.

Nothing here is imported before a device asks for it (see kernels/registry.py): importing triton
costs a second, and a machine without an accelerator does not need it. With TRITON_INTERPRET=1 in
the environment, set before triton is first imported, all of them run on the CPU as well.

Sizes that change from step to step are in do_not_specialize, and blocks do not follow them: a
kernel is compiled once a model, not again in the middle of serving.
"""
