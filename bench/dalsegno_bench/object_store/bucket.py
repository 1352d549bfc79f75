"""A bucket of a server on loopback, and how clients find it."""

from __future__ import annotations

import base64
import socket
from dataclasses import dataclass, replace

from dalsegno_bench.shared_fs.processes import Server

__all__ = ["SERVER_PORT", "VIRTUAL_DOMAIN", "Bucket", "accepts"]

SERVER_PORT = 18333
# A server that is asked for `bucket.VIRTUAL_DOMAIN` knows the bucket by that; no DNS knows `.test`.
VIRTUAL_DOMAIN = "s3.test"
NAME = "dalsegno"
# Credentials of a server that nobody else reaches. Tests look for them in all that is written.
KEY_ID, SECRET = "DALSEGNOTESTKEYID", "dalsegno-test-secret-0123456789"
# The account of Azurite, whose name has small letters and whose key is base64.
ACCOUNT, ACCOUNT_KEY = "dalsegnotests", base64.b64encode(SECRET.encode()).decode()


@dataclass(frozen=True)
class Bucket:
    """A bucket of a server.

    Attributes:
        endpoint: URL of the server, for Azure with the account.
        name: Name of the bucket.
        key_id: Whose it is.
        secret: What signs requests.
        servers: The programs that serve it.
        scheme: How its URL begins: ``s3``, ``gs`` or ``az``.
        checks_credentials: Whether the server refuses wrong ones.
    """

    endpoint: str
    name: str = NAME
    key_id: str = KEY_ID
    secret: str = SECRET
    servers: tuple[Server, ...] = ()
    scheme: str = "s3"
    checks_credentials: bool = True

    @property
    def origin(self) -> str:
        """The URL of the server."""
        return "/".join(self.endpoint.split("/")[:3])

    def url(self, prefix: str = "") -> str:
        """Returns the URL of a prefix in it."""
        return f"{self.scheme}://{self.name}/{prefix}".rstrip("/")

    def credentials(self) -> dict[str, str]:
        """Returns the variables by which clients sign requests."""
        match self.scheme:
            case "gs":
                # The emulator takes any token.
                return {"GOOGLE_BEARER_TOKEN": self.secret}
            case "az":
                return {
                    "AZURE_STORAGE_ACCOUNT_NAME": self.key_id,
                    "AZURE_STORAGE_ACCOUNT_KEY": self.secret,
                }
            case _:
                return {"AWS_ACCESS_KEY_ID": self.key_id, "AWS_SECRET_ACCESS_KEY": self.secret}

    def environment(self) -> dict[str, str]:
        """Returns the variables by which clients find it, with those that sign."""
        match self.scheme:
            case "gs":
                found = {"GOOGLE_BASE_URL": self.endpoint}
            case "az":
                found = {"AZURE_STORAGE_ENDPOINT": self.endpoint}
            case _:
                found = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": "us-east-1"}
        return {**found, **self.credentials()}

    def far_options(self) -> dict[str, str]:
        """Returns how a store reaches it. Credentials are in the environment."""
        region = {"region": "us-east-1"} if self.scheme == "s3" else {}
        return {"endpoint": self.endpoint, **region}

    def behind(self, endpoint: str) -> Bucket:
        """Returns the same bucket through another address."""
        account = f"/{self.key_id}" if self.scheme == "az" else ""
        return replace(self, endpoint=f"{endpoint}{account}")


def accepts(address: str, port: int = SERVER_PORT) -> bool:
    """Whether a server accepts connections."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((address, port)) == 0
