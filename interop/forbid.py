#!/usr/bin/python3
"""Run a program that may not use process_vm_readv and process_vm_writev, as in some containers.

usage: forbid.py PROGRAM ARGS...

A seccomp filter answers both calls with EPERM. It passes to the program and to all its children.
"""

import ctypes
import os
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
FORBIDDEN = {'x86_64': (310, 311), 'aarch64': (270, 271)}[os.uname().machine]
EPERM, ALLOW = 0x00050001, 0x7fff0000

# Load the call's number; on a match, jump to the answer EPERM at the end.
code = [(0x20, 0, 0, 0)]
code += [(0x15, len(FORBIDDEN) - i, 0, number) for i, number in enumerate(FORBIDDEN)]
code += [(0x06, 0, 0, ALLOW), (0x06, 0, 0, EPERM)]

program = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
header = ctypes.create_string_buffer(struct.pack('HxxxxxxQ', len(code), ctypes.addressof(program)))
libc = ctypes.CDLL(None, use_errno=True)
for call in [(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0)]:
    if libc.prctl(*call) != 0:
        sys.exit(f'forbid.py: prctl: {os.strerror(ctypes.get_errno())}')
os.execvp(sys.argv[1], sys.argv[1:])
