"""The acceptance bars of the load balancers: one module a subject, each registered."""
