"""A pair of programs of one user, and a visitor: a process of another user that connects to every socket of theirs.

The visitor sends TCP connections whose close takes ten minutes: their buffers are full, their peers do not read, and
SO_LINGER is set. They are closed with the socket in which they lie unread, by the process that refuses the visitor.
Arguments: softrnic's path, a port, and the command that runs a program as the other user. Needs to be root.
"""

import array
import os
import signal
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
    """Of the sockets of this process at which a stranger can connect."""
    inodes = set()
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return set()  # it has ended
    for fd in fds:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    try:
        with open(f"/proc/{pid}/net/unix") as table:
            rows = [line.split() for line in table]
    except OSError:
        return set()
    listening = 0x10000  # __SO_ACCEPTCON
    return {row[7] for row in rows if len(row) > 7 and row[6] in inodes and int(row[3], 16) & listening}


def visit(name):
    """True if something was left there. The socket's owner is stopped meanwhile: it neither turns us away nor closes anything."""
    slow = slow_to_close()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [slow.fileno()]).tobytes())]
    visitor = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    visitor.settimeout(1)
    try:
        visitor.connect("\0" + name[1:])
        visitor.sendmsg([b"hello"], rights)
    except OSError:
        # No copy but this process's, which must not linger.
        linger(slow, 0)
        slow.close()
        return False
    slow.close()  # the copy in the message remains, so this one does not linger
    kept.append(visitor)
    return True


def wait_for(what, is_there):
    deadline = time.monotonic() + 60
    while not is_there():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not within 60 s")
        time.sleep(0.02)


def main():
    softrnic, port, *other_user = sys.argv[1:]
    program = [*other_user, softrnic, "run", "--", "ib_send_lat", "-R", "-D", "4", "-p", port]
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    server = subprocess.Popen(program, **quiet)
    wait_for("a listener", lambda: server.poll() is not None or any(n.endswith("/listen") for n in names(server.pid)))
    client = subprocess.Popen([*program, "127.0.0.1"], **quiet)
    # The client has no listener; its queue pair's name is there before it connects.
    wait_for("a queue pair", lambda: client.poll() is not None or any("/qpn/" in n for n in names(client.pid)))
    doors = names(server.pid) | names(client.pid)
    for process in (server, client):
        process.send_signal(signal.SIGSTOP)
    left = {name for name in sorted(doors) if [True for _ in range(20) if visit(name)]}
    for process in (server, client):
        process.send_signal(signal.SIGCONT)
    for name in sorted(doors):
        print(name, "something was left" if name in left else "no more than connected to")
    # Far less than the close of those connections takes, and far more than the programs' work.
    deadline = time.monotonic() + 60
    results = []
    for process in (server, client):
        try:
            results.append(process.wait(max(deadline - time.monotonic(), 0.1)))
        except subprocess.TimeoutExpired:
            process.kill()
            results.append("hung")
    print("server and client:", *results)
    sys.stdout.flush()
    # Without the cleanup of Python, which closes descriptors one by one: the kernel lets no exiting process linger.
    os._exit(0 if results == [0, 0] and left else 1)

main()
