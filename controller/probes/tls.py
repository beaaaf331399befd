"""TLS contexts of probes. Raises InvalidSpec for files that cannot be used."""

from __future__ import annotations

import ssl

from controller.probes.spec import Tls
from nodeagent.model.errors import InvalidSpec


def context(spec: Tls) -> ssl.SSLContext:
    """A client's context: it verifies unless told otherwise, and shows its certificate."""
    if (spec.cert is None) != (spec.key is None):
        raise InvalidSpec("a client certificate needs both `cert` and `key`")
    try:
        found = ssl.create_default_context(cafile=spec.ca)
        if spec.cert is not None:
            found.load_cert_chain(spec.cert, spec.key)
    except (OSError, ssl.SSLError) as exc:
        names = ", ".join(str(p) for p in (spec.ca, spec.cert, spec.key) if p)
        raise InvalidSpec("a TLS file of the probe cannot be used", f"{names}: {exc}") from exc
    if not spec.verify:
        found.check_hostname = False
        found.verify_mode = ssl.CERT_NONE
    return found
