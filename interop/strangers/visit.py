"""A pair of programs of one user, and another user who connects to every socket of theirs.

He leaves a TCP connection there whose close takes ten minutes: its buffers are full, its peer does not read, and SO_LINGER is set. It is
closed with the socket in which it lies unread, by whoever turns him away. Arguments: softrnic's path, a port, and what runs a
program as the other user. Needs to be root.
"""

import array
import os
import socket
import struct
import subprocess
import sys
import time

TEN_MINUTES = 600
kept = []


def slow_to_close():
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    near = socket.create_connection(listener.getsockname())
    far, _ = listener.accept()
    near.setblocking(False)
    try:
        while True:
            near.send(b"x" * 65536)
    except BlockingIOError:
        pass
    linger(near, 1)
    kept.extend((listener, far))
    return near


def linger(connection, on):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", on, TEN_MINUTES * on))


def names(pid):
    """Of the sockets of this process at which somebody can knock."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    with open(f"/proc/{pid}/net/unix") as table:
        rows = [line.split() for line in table]
    listening = 0x10000  # __SO_ACCEPTCON
    return {row[7] for row in rows if len(row) > 7 and row[6] in inodes and int(row[3], 16) & listening}


def knock(name):
    """True if something was left there before the door was shut."""
    slow = slow_to_close()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [slow.fileno()]).tobytes())]
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    visitor.settimeout(1)
    try:
        visitor.connect("\0" + name[1:])
        visitor.sendmsg([b"hello"], rights)
    except OSError:
        linger(slow, 0)
        return False
    finally:
        slow.close()
    kept.append(visitor)
    return True


def main():
    softrnic, port, *other_user = sys.argv[1:]
    program = [*other_user, softrnic, "run", "--", "ib_send_lat", "-R", "-D", "4", "-p", port]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    server = subprocess.Popen(program, **quiet)
    time.sleep(1)
    client = subprocess.Popen([*program, "127.0.0.1"], **quiet)
    time.sleep(1.5)
    doors = names(server.pid) | names(client.pid)
    left = {name for name in doors if any(knock(name) for _ in range(20))}
    for name in sorted(doors):
        print(name, "something was left" if name in left else "no more than knocked at")
    # Far less than it takes to close what was left, and far more than what they do.
    deadline = time.monotonic() + 60
    results = []
    for process in (server, client):
        try:
            results.append(process.wait(max(deadline - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            process.kill()
            results.append("hung")
    print("server and client:", *results)
    sys.exit(0 if results == [0, 0] and left else 1)


main()
