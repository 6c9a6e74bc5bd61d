#!/usr/bin/env python3
"""Forward packets between a tun device in this network namespace and one in another, as a bad network does.

forward.py OTHER SEED LOSE DOUBLE DELAY

OTHER is the file of the other namespace (/proc/PID/ns/net). One in LOSE packets is lost, one in DOUBLE comes twice (0:
none), and each is delayed by up to DELAY microseconds, so that packets overtake each other. The devices are named tun0
and are brought up by others. Prints `ready` when both are there.
"""

import ctypes
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1
SIGKILL = 9


def tun():
    """Makes tun0 in the namespace of this process."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"tun0", IFF_TUN | IFF_NO_PI))
    return device


def main():
    other, seed, lose, double, delay = sys.argv[1], *map(int, sys.argv[2:])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
    sides = [tun()]
    with open(other) as namespace:
        if libc.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    sides.append(tun())
    print("ready", flush=True)
    chance = random.Random(seed)
    flying = []
    count = lost = doubled = told = 0
    while True:
        wait = max(0, flying[0][0] - time.monotonic()) if flying else None
        for device in select.select(sides, [], [], wait)[0]:
            try:
                packet = os.read(device, 65536)
            except OSError:
                # A device that is down, or that another read has emptied.
                continue
            count += 1
            to = sides[1 - sides.index(device)]
            if lose and chance.randrange(lose) == 0:
                lost += 1
                continue
            copies = 1
            if double and chance.randrange(double) == 0:
                doubled += 1
                copies = 2
            for copy in range(copies):
                at = time.monotonic() + chance.randrange(delay + 1) / 1e6
                heapq.heappush(flying, (at, count, copy, to, packet))
        while flying and flying[0][0] <= time.monotonic():
            *_, to, packet = heapq.heappop(flying)
            try:
                os.write(to, packet)
            except OSError:
                # The kernel's queue is full, or the device is down: one more packet is lost.
                lost += 1
        if count >= told + 500:
            told = count
            print(f"{count} packets, {lost} lost, {doubled} doubled", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
