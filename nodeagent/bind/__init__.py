"""Read-only: from targets as a user names them to the kernel's own identities."""
