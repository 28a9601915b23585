"""HTTP and SSE edge."""
