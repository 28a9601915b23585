"""A certificate authority of the fleet's own, and certificates that only this fleet trusts."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

FLEET_NAME = "fleet.rorqual"
"""In every certificate: instances come and go under addresses that nobody knows beforehand, so what
a peer proves is that it belongs to the fleet."""
_CLOCKS_DIFFER = datetime.timedelta(hours=1)
_AUTHORITY_LIFE = datetime.timedelta(days=3650)
_LIFE = datetime.timedelta(days=365)
_RENEW_BEFORE = datetime.timedelta(days=90)


@dataclass(frozen=True, slots=True, repr=False)
class KeyPair:
    """PEM of a private key and of its certificate."""

    key: bytes
    certificate: bytes


def new_authority() -> KeyPair:
    """Who signs everybody's certificates."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("rorqual authority")
    built = (
        _builder(name, name, key.public_key(), _AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pair(key, built)


def new_certificate(authority: KeyPair, identity: str, names: Sequence[str] = ()) -> KeyPair:
    """For both ends of a connection; valid a year. names: beside that of the fleet."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = load_pem_private_key(authority.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    known_as = [x509.DNSName(name) for name in (FLEET_NAME, f"{identity}.rorqual", *names)]
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    built = (
        _builder(_name(identity), issuer.subject, key.public_key(), _LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName(known_as), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(key, built)


def is_good(certificate: bytes, authority: KeyPair) -> bool:
    """Whether a certificate is of this authority and will be for a while."""
    try:
        own = x509.load_pem_x509_certificate(certificate)
        own.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return own.not_valid_after_utc - datetime.datetime.now(datetime.UTC) > _RENEW_BEFORE


def is_pair(pair: KeyPair) -> bool:
    """Whether the certificate is that of the key."""
    try:
        key = load_pem_private_key(pair.key, password=None)
        certificate = x509.load_pem_x509_certificate(pair.certificate)
    except (ValueError, TypeError):
        return False
    return key.public_key() == certificate.public_key()


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    life: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + life)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> KeyPair:
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return KeyPair(secret, certificate.public_bytes(Encoding.PEM))
