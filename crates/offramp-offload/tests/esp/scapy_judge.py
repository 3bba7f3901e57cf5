"""Checks offramp's ESP packets with scapy, or with OpenSSL's AEADs for the suites that scapy lacks.

Reads a JSON list of cases from standard input. Writes for each case the fault that it found ("" for none) and,
for the suites of scapy, the packet that scapy seals from the same clear packet.
"""
import json
import sys

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.ipsec import ESP, IPSecIntegrityError, SecurityAssociation


def crypt_of(suite):
    if suite.startswith("3des"):
        return "3DES"
    if suite.startswith("null"):
        return "NULL"
    if suite.startswith("chacha20poly1305"):
        return "CHACHA20-POLY1305"
    return "AES-GCM" if "gcm" in suite else "AES-CBC"


AUTH = {"sha1": "HMAC-SHA1-96", "sha256": "SHA2-256-128", "sha384": "SHA2-384-192", "sha512": "SHA2-512-256"}


class ExtendedAuth:
    """An HMAC that covers the upper half of the sequence number (RFC 4303 2.8). scapy's HMAC covers it only for AH."""

    def __init__(self, algorithm, high):
        self.algorithm, self.high, self.icv_size = algorithm, high.to_bytes(4, "big"), algorithm.icv_size

    def icv(self, covered, key):
        mac = self.algorithm.new_mac(key)
        mac.update(covered + self.high)
        return mac.finalize()[:self.icv_size]

    def sign(self, packet, key):
        packet[ESP].data += self.icv(bytes(packet[ESP]), key)
        return packet

    def verify(self, packet, key):
        data = bytes(packet)
        if data[-self.icv_size:] != self.icv(data[:-self.icv_size], key):
            raise IPSecIntegrityError("check value with extended sequence number")


def association(case):
    suite = case["suite"]
    if suite.endswith("iiv") or "gmac" in suite:
        return None
    tunnel = case["tunnel"]
    header = None
    if tunnel:
        kind = IPv6 if ":" in tunnel[0] else IP
        header = kind(src=tunnel[0], dst=tunnel[1])
    sa = SecurityAssociation(
        ESP,
        spi=case["spi"],
        crypt_algo=crypt_of(suite),
        crypt_key=bytes.fromhex(case["encryption_key"]) or None,
        auth_algo=AUTH.get(suite.rsplit("-", 1)[-1]),
        auth_key=bytes.fromhex(case["integrity_key"]) or None,
        tunnel_header=header,
        nat_t_header=UDP(sport=4500, dport=4500) if case["udp"] else None,
        esn_en=case["esn"],
        esn=case["sequence"] >> 32,
    )
    if case["esn"] and case["integrity_key"]:
        sa.auth_algo = ExtendedAuth(sa.auth_algo, case["sequence"] >> 32)
    return sa


def parse(data):
    return IPv6(data) if data[0] >> 4 == 6 else IP(data)


def judge_by_scapy(sa, case):
    clear, sealed = bytes.fromhex(case["clear"]), bytes.fromhex(case["sealed"])
    opened = bytes(sa.decrypt(parse(sealed)))
    wrong = "" if opened == clear else "scapy opens it to " + opened.hex()
    own = bytearray(bytes(sa.encrypt(parse(clear), seq_num=case["sequence"] & 0xFFFFFFFF)))
    if case["udp"]:
        # scapy 2.5 leaves the ESP packet out of UDP's length.
        header_len = (own[0] & 15) * 4
        own[header_len + 4:header_len + 6] = (len(own) - header_len).to_bytes(2, "big")
    return {"wrong": wrong, "sealed": own.hex()}


def judge_by_openssl(case):
    """Decrypts the packet from its SPI on with OpenSSL, and checks padding and payload."""
    suite, key = case["suite"], bytes.fromhex(case["encryption_key"])
    esp = bytes.fromhex(case["sealed"])[case["esp_at"]:]
    key, salt = key[:-4], key[-4:]
    aead = ChaCha20Poly1305(key) if suite.startswith("chacha") else AESGCM(key)
    sequence = case["sequence"]
    aad = esp[:4] + sequence.to_bytes(8 if case["esn"] else 4, "big")
    iv, body = (sequence.to_bytes(8, "big"), esp[8:]) if suite.endswith("iiv") else (esp[8:16], esp[16:])
    try:
        if "gmac" in suite:
            aead.decrypt(salt + iv, body[-16:], aad + iv + body[:-16])
            plain = body[:-16]
        else:
            plain = aead.decrypt(salt + iv, body, aad)
    except InvalidTag:
        return {"wrong": "OpenSSL finds the check value wrong"}
    pad_len = plain[-2]
    if plain[-2 - pad_len:-2] != bytes(range(1, pad_len + 1)):
        return {"wrong": "padding"}
    payload, expected = plain[:-2 - pad_len], bytes.fromhex(case["payload"])
    return {"wrong": "" if payload == expected else "OpenSSL opens it to " + payload.hex()}


def judge(case):
    sa = association(case)
    try:
        return judge_by_openssl(case) if sa is None else judge_by_scapy(sa, case)
    except Exception as error:  # Reported for this case only. The other cases are still checked.
        return {"wrong": f"{type(error).__name__}: {error}"}


json.dump([judge(case) for case in json.load(sys.stdin)], sys.stdout)
