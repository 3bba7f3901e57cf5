#!/bin/sh
# Commands for iproute2 6.1 on Linux 6.1. The .txt files of this directory are the output of ip xfrm after them.
modprobe esp4; modprobe esp6
ip xfrm state flush && ip xfrm policy flush
ip xfrm state add src 198.18.0.1 dst 198.18.0.2 proto esp spi 0x1000 reqid 1 mode tunnel \
    aead 'rfc4106(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128 replay-window 64 flag esn replay-oseq-hi 0 replay-oseq 0xfffffff0
ip xfrm state add src 198.18.0.2 dst 198.18.0.1 proto esp spi 0x1001 reqid 2 mode tunnel \
    enc 'cbc(aes)' 0x000102030405060708090a0b0c0d0e0f auth-trunc 'hmac(sha256)' 0x000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f 128 replay-window 32 encap espinudp 4500 4501 0.0.0.0 flag decap-dscp nopmtudisc af-unspec limit byte-soft 1000000 limit byte-hard 2000000 limit packet-soft 10 limit packet-hard 100
ip xfrm state add src 2001:db8::1 dst 2001:db8::2 proto esp spi 0x1002 reqid 3 mode transport \
    aead 'rfc7539esp(chacha20,poly1305)' 0x000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f00010203 128 sel src 2001:db8::1/128 dst 2001:db8::2/128 proto tcp sport 80 
ip xfrm state add src 198.18.0.2 dst 198.18.0.3 proto esp spi 0x1003 mode transport \
    enc 'cbc(des3_ede)' 0x000102030405060708090a0b0c0d0e0f0011223344556677 auth 'hmac(sha1)' 0x0102030405060708090a0b0c0d0e0f1011121314 replay-seq 7 replay-oseq 9
ip xfrm state add src 198.18.0.2 dst 198.18.0.3 proto esp spi 0x1004 mode transport \
    enc 'ecb(cipher_null)' '' auth-trunc 'hmac(sha512)' 0x000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f 256 flag noecn replay-window 128 
ip xfrm state add src 198.18.0.2 dst 198.18.0.3 proto esp spi 0x1005 mode tunnel \
    aead 'rfc4543(gcm(aes))' 0x000102030405060708090a0b0c0d0e0f10111213 128 flag esn nopmtudisc extra-flag dont-encap-dscp replay-window 32
ip xfrm state add src 198.18.0.2 dst 198.18.0.3 proto esp spi 0x1008 mode tunnel \
    enc 'cbc(aes)' "sixteen byte key" auth-trunc 'hmac(sha256)' 0x000102030405060708090a0b0c0d0e0f000102030405060708090a0b0c0d0e0f 128
ip xfrm policy add src 198.18.0.1/32 dst 198.18.0.2/32 dir out \
    tmpl src 198.18.0.1 dst 198.18.0.2 proto esp reqid 1 mode tunnel
ip xfrm policy add src 198.18.0.2/32 dst 198.18.0.1/32 proto tcp sport 80 dport 90 dir in priority 100 \
    tmpl src 198.18.0.2 dst 198.18.0.1 proto esp spi 0x1001 reqid 2 mode transport
ip xfrm policy add src 198.18.0.2/32 dst 198.18.0.1/32 dir fwd priority 100 \
    tmpl src 198.18.0.2 dst 198.18.0.1 proto esp reqid 2 mode tunnel
ip xfrm policy add src 10.0.0.0/8 dst 0.0.0.0/0 dir out action block flag localok
ip xfrm policy add src 2001:db8::/32 dst ::/0 proto ipv6-icmp dir out action allow
