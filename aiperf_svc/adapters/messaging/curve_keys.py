"""Manages the CURVE key pairs, one for each service, with which services authenticate each other
over TCP.

A service binds and connects with the same pair. A process holds the secret keys of its own services
and the public keys of the services that it communicates with (`ports.with_peers`). So the ports
that admit its services limit the messages that a process may send.
"""

from collections.abc import Iterable
from pathlib import Path

import msgspec
import zmq

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.protocol.ports import BOUND_BY, CONNECTED_BY, Port, key_file, with_peers
from aiperf_svc.protocol.services import Service


class KeyPair(msgspec.Struct, frozen=True):
    """A key pair, both halves in Z85."""

    public: bytes
    secret: bytes


class CurveKeys(msgspec.Struct, frozen=True):
    """The keys of one process, in Z85."""

    public: dict[Service, bytes]
    secret: dict[Service, bytes]

    @classmethod
    def make(cls) -> "CurveKeys":
        """Generate random keys for all services."""
        pairs = {service: zmq.curve_keypair() for service in Service}
        return cls(
            {service: public for service, (public, _) in pairs.items()},
            {service: secret for service, (_, secret) in pairs.items()},
        )

    def of(self, services: Iterable[Service]) -> "CurveKeys":
        """Return the subset of keys that a process with these services needs."""
        own = frozenset(services)
        known = with_peers(own)
        return CurveKeys(
            {service: key for service, key in self.public.items() if service in known},
            {service: key for service, key in self.secret.items() if service in own},
        )

    def files(self) -> dict[str, bytes]:
        """Return the name and content of each key's file."""
        public = {key_file(service, "public"): key for service, key in self.public.items()}
        return public | {key_file(service, "secret"): key for service, key in self.secret.items()}

    @classmethod
    def load(cls, folder: Path) -> "CurveKeys":
        """Load the keys from the files in a folder. Raises EnvironmentProblem."""
        try:
            found = {
                path.name: path.read_bytes().strip()
                for path in folder.iterdir()
                if path.suffix in (".public", ".secret")
            }
        except OSError as error:
            raise EnvironmentProblem(f"cannot read the CURVE keys in {folder}: {error}") from error
        if not found:
            raise EnvironmentProblem(f"cannot read the CURVE keys in {folder}: there are none")
        public, secret = (
            {s: found[key_file(s, half)] for s in Service if key_file(s, half) in found}
            for half in ("public", "secret")
        )
        return cls(public, secret)

    def save(self, folder: Path) -> None:
        """Write the files that `load` reads, readable only by their owner."""
        for name, key in self.files().items():
            path = folder / name
            path.touch(mode=0o600)
            path.write_bytes(key)

    def to_bind(self, port: Port) -> KeyPair:
        """Return the key pair of the service that binds `port`. Raises EnvironmentProblem."""
        return self._pair([BOUND_BY[port]], f"bind {port.name}")

    def to_connect(self, port: Port) -> tuple[bytes, KeyPair]:
        """Return the public key of the service that binds `port`, and the key pair of a service
        that may connect to it. Raises EnvironmentProblem."""
        pair = self._pair(sorted(CONNECTED_BY[port]), f"connect to {port.name}")
        try:
            return self.public[BOUND_BY[port]], pair
        except KeyError:
            raise EnvironmentProblem(
                f"no CURVE key {key_file(BOUND_BY[port], 'public')} here, which is needed to "
                f"connect to {port.name}"
            ) from None

    def admitted_keys(self, port: Port) -> frozenset[bytes]:
        """Return the public keys of the services that may connect to `port`."""
        clients = CONNECTED_BY.get(port, frozenset())
        return frozenset(self.public[service] for service in clients if service in self.public)

    def _pair(self, services: list[Service], purpose: str) -> KeyPair:
        for service in services:
            if service in self.secret and service in self.public:
                return KeyPair(self.public[service], self.secret[service])
        names = " or ".join(key_file(service, "secret") for service in services)
        raise EnvironmentProblem(f"no CURVE key {names} here, which is needed to {purpose}")
