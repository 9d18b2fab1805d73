"""Certificates and keys: a certificate authority of the federation's own, the server's certificate, a key per node."""

from __future__ import annotations

import ipaddress
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from resolvent.errors import InputError
from resolvent.federation.project import Project
from resolvent.installed import install

DAYS = 3650
CA, CA_KEY, CERTIFICATE, SERVER_KEY, SECRET = "ca.crt", "ca.key", "server.crt", "server.key", "superexec.secret"
EARLY = timedelta(hours=1)
"""Certificates begin to be valid this long ago: clocks differ."""
MAX_NAME = 60
"""Characters of a node's name, and of the name that a certificate is for."""


def _needed() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise InputError(f"keys need cryptography, which is not installed; {install('flower')}") from None


def make_server(project: Project, hosts: list[str]) -> None:
    """A certificate authority where there is none yet, and the server's certificate for these names and addresses."""
    _needed()
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    folder = project.keys
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / CA).is_file():
        _make_authority(folder)
    if not (folder / CA_KEY).is_file():
        raise InputError(f"{folder / CA_KEY} is missing: only the machine that made the certificate authority can sign")
    authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
    ca_key: Any = load_pem_private_key((folder / CA_KEY).read_bytes(), None)
    names = [_general_name(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    extensions = {
        x509.SubjectAlternativeName(names): False,
        x509.BasicConstraints(ca=False, path_length=None): True,
        x509.ExtendedKeyUsage([x509.OID_SERVER_AUTH]): False,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()): False,
    }
    key = _new_key()
    _write(folder / CERTIFICATE, _signed(_named(hosts[0]), authority.subject, key, ca_key, extensions), secret=False)
    _write(folder / SERVER_KEY, _private(key, "PKCS8"), secret=True)
    if not (folder / SECRET).is_file():
        _write(folder / SECRET, secrets.token_hex(32).encode(), secret=True)


def _make_authority(folder: Path) -> None:
    from cryptography import x509

    key, name = _new_key(), _named(f"resolvent federation {secrets.token_hex(4)}")
    other_uses = dict.fromkeys(("digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
                                "key_agreement", "encipher_only", "decipher_only"), False)  # fmt: skip
    extensions = {
        x509.BasicConstraints(ca=True, path_length=0): True,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()): False,
        x509.KeyUsage(key_cert_sign=True, crl_sign=True, **other_uses): True,
    }
    _write(folder / CA, _signed(name, name, key, key, extensions), secret=False)
    _write(folder / CA_KEY, _private(key, "PKCS8"), secret=True)


def make_node(project: Project, name: str, renew: bool = False) -> Path:
    """The key pair of a node, in OpenSSH's format: NAME and NAME.pub.

    A key that is there already is left alone, unless it is to be renewed.
    """
    _needed()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    check_name(name)
    path = project.nodes / name
    if renew or not path.is_file():
        key = _new_key()
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, _private(key, "OpenSSH"), secret=True)
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        _write(path.with_name(f"{name}.pub"), public + b"\n", secret=False)
    return path


def check_name(name: str) -> None:
    """Refuse a name of a node that is not one of a file."""
    if not 0 < len(name) <= MAX_NAME or not all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
        needed = f"letters, digits, - and _ are needed, {MAX_NAME} at most"
        raise InputError(f"the node's name is {name[:80]!r}, but {needed}")


def public_keys(project: Project) -> dict[bytes, str]:
    """The names of the nodes by their public keys, in the form in which Flower knows them."""
    _needed()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_public_key

    names = {}
    for name in project.names():
        path = project.nodes / f"{name}.pub"
        try:
            key = load_ssh_public_key(path.read_bytes())
        except ValueError:
            raise InputError(f"{path} is no public key; copy it again from the node's machine") from None
        names[key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)] = name
    return names


def valid_until(path: Path) -> tuple[datetime, datetime, list[str]]:
    """From when until when a certificate is valid, and for which names."""
    _needed()
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    alternatives = [e.value for e in certificate.extensions if isinstance(e.value, x509.SubjectAlternativeName)]
    names = [str(name.value) for extension in alternatives for name in extension]
    return certificate.not_valid_before_utc, certificate.not_valid_after_utc, names


# --- what they are made of -------------------------------------------------------------------------------------------


def _signed(subject: Any, issuer: Any, key: Any, issuer_key: Any, extensions: dict[Any, bool]) -> bytes:
    """A certificate; extensions are critical or not."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - EARLY).not_valid_after(now + timedelta(days=DAYS))
    for extension, critical in extensions.items():
        builder = builder.add_extension(extension, critical)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(Encoding.PEM)


def _named(common: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common[:MAX_NAME])])


def _general_name(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP384R1())


def _private(key: Any, form: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return bytes(key.private_bytes(Encoding.PEM, getattr(PrivateFormat, form), NoEncryption()))


def _write(path: Path, content: bytes, secret: bool) -> None:
    """Secrets can be read by this user alone, from the first moment on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644)
    with os.fdopen(handle, "wb") as file:
        file.write(content)
