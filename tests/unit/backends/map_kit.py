"""A BPF map without a kernel."""

from __future__ import annotations


class Table(dict[bytes, bytes]):
    """The calls of BpfMap that programs' owners make, on a dict."""

    def update(self, key: bytes, value: bytes) -> None:  # type: ignore[override]
        self[key] = value

    def lookup(self, key: bytes) -> bytes | None:
        return self.get(key)

    def delete(self, key: bytes) -> bool:
        return self.pop(key, None) is not None
