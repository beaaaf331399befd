"""Certificates of mutual TLS for all agents of a cluster, as two Secrets.

One CA signs one certificate for the agents, by the name SERVER_NAME and not by addresses, and
one for the controllers. The CA's key is not kept: new certificates come with a new CA, and an
agent takes them at the next handshake after the kubelet has brought them (a minute or two).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from controller.kube.agents import SECRET, SERVER_NAME
from controller.kube.answers import ApiPath
from controller.kube.client import APPLY, Cluster
from controller.kube.manifests import Object, path_of, secret
from nodeagent.model.errors import InvalidSpec, Refused, lacks_package
from nodeagent.model.protected import AGENT_NAMESPACE

AGENT_SECRET = "faultd-tls"  # noqa: S105 - a name
CERT_MANAGER = "cert-manager.io/certificate-name"
"""Annotation of the Secrets that cert-manager writes, and would write again over ours."""
VALID = timedelta(days=365)


def make(valid: timedelta = VALID) -> tuple[Object, Object]:
    """(the agents' Secret, the controllers' Secret). Raises InvalidSpec."""
    if valid < timedelta(hours=1):
        raise InvalidSpec(f"certificates for {valid} are worth nothing", "an hour at least")
    try:
        from controller.lab import certs
    except ImportError as exc:
        instead = ", or use cert-manager (daemonset/overlays)"
        raise lacks_package("making certificates", "cryptography", "kube", exc, instead) from exc
    authority = certs.make_ca("faultctl CA", valid)
    agents = certs.issue(authority, SERVER_NAME, server=True, names=(SERVER_NAME,), valid=valid)
    clients = certs.issue(authority, "faultctl", server=False, valid=valid)
    ca = {"ca.crt": authority.cert_pem}
    found = [
        secret(name, {"tls.crt": pair.cert_pem, "tls.key": pair.key_pem, **ca})
        for name, pair in ((AGENT_SECRET, agents), (SECRET, clients))
    ]
    return found[0], found[1]


def there(cluster: Cluster) -> bool:
    """Whether both Secrets are there, by whoever made them."""
    return all(one is not None for one in _secrets(cluster).values())


def _secrets(cluster: Cluster) -> dict[str, Object | None]:
    return {
        name: cluster.get(ApiPath("secrets", AGENT_NAMESPACE, name))
        for name in (AGENT_SECRET, SECRET)
    }


def put(cluster: Cluster, valid: timedelta = VALID) -> datetime:
    """Make new certificates and put them into the cluster; when they end.

    Raises Refused when cert-manager holds one of the Secrets.
    """
    for name, there in _secrets(cluster).items():
        holder = (there or {"metadata": {}})["metadata"].get("annotations", {}).get(CERT_MANAGER)
        if holder:
            raise Refused(
                f"Secret {AGENT_NAMESPACE}/{name} is cert-manager's",
                f"its Certificate {holder} would be issued anew over ours",
                f"cmctl renew --all -n {AGENT_NAMESPACE}; or delete Certificate and Secret",
            )
    for one in make(valid):
        cluster.patch(path_of(one), one, APPLY, fieldManager="faultctl", force="true")
    return datetime.now(UTC) + valid
