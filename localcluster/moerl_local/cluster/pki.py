"""Makes the cluster's certificates on the spot, so that nothing secret is ever shipped or shared between clusters."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=3650)
_SKEW = datetime.timedelta(hours=1)  # a clock set back a little must not make a new certificate invalid


class Authority:
    """A certificate authority kept in `folder` as `name`.crt and `name`.key; made at first use."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.certificate_path = folder / f"{name}.crt"
        key_path = folder / f"{name}.key"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (self.certificate_path.exists() and key_path.exists()):
            key = ec.generate_private_key(ec.SECP256R1())
            subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"moerl-{name}")])
            builder = _builder(subject, subject, key.public_key())
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            builder = builder.add_extension(_usage(sign_certificates=True), critical=True)
            _write(key_path, _key_bytes(key))
            _write(self.certificate_path, builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        key_read = serialization.load_pem_private_key(key_path.read_bytes(), None)
        assert isinstance(key_read, ec.EllipticCurvePrivateKey)
        self._key = key_read
        self._certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())

    def issue(
        self, file: str, user: str, *, groups: Sequence[str] = (), addresses: Sequence[str] = ()
    ) -> tuple[Path, Path]:
        """A certificate for `user` in `groups`, valid for server names and IPs in `addresses`, anew at each call.

        Returns:
            The paths of certificate and key.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        names += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        builder = _builder(x509.Name(names), self._certificate.subject, key.public_key())
        builder = builder.add_extension(_usage(sign_certificates=False), critical=True)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        if addresses:
            alternatives = x509.SubjectAlternativeName([_general_name(address) for address in addresses])
            builder = builder.add_extension(alternatives, critical=False)
        certificate = self._folder / f"{file}.crt"
        key_path = self._folder / f"{file}.key"
        _write(key_path, _key_bytes(key))
        _write(certificate, builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return certificate, key_path


def signing_key(folder: Path) -> tuple[Path, Path]:
    """The key pair that signs service account tokens, made at first use: paths of the private and public part."""
    private, public = folder / "sa.key", folder / "sa.pub"
    if not (private.exists() and public.exists()):
        key = ec.generate_private_key(ec.SECP256R1())
        _write(private, _key_bytes(key))
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        _write(public, key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return private, public


def write_kubeconfig(
    path: Path,
    *,
    server: str,
    authority: Path,
    user: str,
    pair: tuple[Path, Path] | None = None,
    token: str | None = None,
) -> Path:
    """Write a kubeconfig that carries its certificates in itself, readable by the owner only."""
    credentials: dict[str, str] = {"token": token} if token else {}
    if pair:
        credentials = {"client-certificate-data": _base64(pair[0]), "client-key-data": _base64(pair[1])}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "moerl", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}
        ],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "moerl-local", "context": {"cluster": "moerl", "user": user}}],
        "current-context": "moerl-local",
    }
    _write(path, json.dumps(content, indent=1).encode())
    return path


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - _SKEW, now + _LIFE)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.tmp")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(content)
    unfinished.rename(path)
