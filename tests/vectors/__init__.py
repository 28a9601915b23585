"""Cases with the reference's answers, and what differs from them on purpose."""
