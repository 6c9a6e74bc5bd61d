#!/usr/bin/python3
"""Cases of the suite `sock`: real programs over TCP connections, with the socket library in none, one or both.

    cases.py CASE SIDES SOFTRNIC    SIDES: neither, client, server, both
    cases.py serve NAME ...         a program of this file as a server or a client

All data are compared. `xtask/src/interop/sock.rs` runs each case in a network namespace of its own where that is
permitted. The case then also compares the bytes that the kernel carried with those of the programs: a connection moves
if both sides have the library, and does not move otherwise.
"""
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time

import peers

HERE = os.path.abspath(__file__)
LIMIT = 80
PORT = 24801
# Much more than the buffers of a TCP connection hold: what fits into these can be sent before the receiver reads.
SIZE = 48 << 20
URL = f"http://127.0.0.1:{PORT}"

server_prefix = []
client_prefix = []
started = []


class Wrong(Exception):
    """What a case found."""


def check(condition, what):
    if not condition:
        raise Wrong(what)


def start(words, **more):
    """Start a server with the library or without, as the case has it."""
    child = subprocess.Popen([*server_prefix, *words], stdin=subprocess.DEVNULL, **more)
    started.append(child)
    return child


def client(words, **more):
    """Run a client with the library or without, and give its output."""
    more.setdefault("stdin", subprocess.DEVNULL if "input" not in more else None)
    if "input" in more:
        del more["stdin"]
    done = subprocess.run([*client_prefix, *words], stdout=subprocess.PIPE, timeout=LIMIT, **more)
    check(done.returncode == 0, f"{words[0]} ended with {done.returncode}: {done.stdout[-300:]!r}")
    return done.stdout


def wait_for(what, condition, server=None):
    until = time.monotonic() + 40
    while not condition():
        check(server is None or server.poll() is None, f"the server ended before {what}")
        check(time.monotonic() < until, f"not within 40 seconds: {what}")
        time.sleep(0.01)


def listens(port=PORT):
    """Whether a socket listens (state 0A), without connecting to it."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as lines:
            for line in list(lines)[1:]:
                words = line.split()
                if words[3] == "0A" and words[1].endswith(f":{port:04X}"):
                    return True
    return False


def serve(words, **more):
    """Start a server, and wait until it listens."""
    server = start(words, **more)
    wait_for("the server listens", listens, server)
    return server


def stop(server):
    check(server.poll() is None, f"the server ended with {server.poll()}")
    server.terminate()
    try:
        server.wait(40)
    except subprocess.TimeoutExpired as late:
        raise Wrong("the server does not end") from late
    started.remove(server)


def carried():
    """Bytes that the kernel has sent by IP in this network namespace."""
    with open("/proc/net/netstat") as lines:
        rows = [line.split() for line in lines if line.startswith("IpExt:")]
    return int(dict(zip(*rows))["OutOctets"])


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def files(sizes, folder="files"):
    """Make files of these sizes. The result is a dictionary of names and hashes."""
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o755)
    made = {}
    for size in sizes:
        data = noise(size, size)
        with open(f"{folder}/{size}", "wb") as file:
            file.write(data)
        made[str(size)] = hashlib.sha256(data).hexdigest()
    return made


def compare(made, folder):
    for name, digest in made.items():
        with open(f"{folder}/{name}", "rb") as file:
            check(hashlib.sha256(file.read()).hexdigest() == digest, f"{folder}/{name} is not what was sent")


def curl(made, *options, base=URL, times=1):
    """Get the files by curl(1) in one process, several times."""
    total = 0
    for n in range(times):
        words = ["curl", "-sS", "--fail", *options]
        for name in made:
            words += ["-o", f"got/{name}", f"{base}/{name}"]
            total += int(name)
        os.makedirs("got", exist_ok=True)
        client(words)
        compare(made, "got")
        shutil.rmtree("got")
    return total


# Each case gives the number of bytes that the programs have sent each other, as far as they may move; 0: no statement.

def redis():
    server = serve(["redis-server", "--port", str(PORT), "--save", "", "--appendonly", "no", "--loglevel", "warning"])
    cli = ["redis-cli", "-p", str(PORT)]
    values = {f"key:{n}": noise(n, size).hex() for n, size in enumerate([1, 2, 100, 2000, 8192, 40000, 300000])}
    lines = "".join(f"SET {key} {value}\n" for key, value in values.items())
    check(client(cli, input=lines.encode()).split() == [b"OK"] * len(values), "SET was not answered by OK")
    got = client(cli, input="".join(f"GET {key}\n" for key in values).encode()).decode().split()
    check(got == list(values.values()), "GET gives other values than SET has set")
    total = 2 * len(lines)
    words = [f"value:{n}:{noise(n, 20).hex()}" for n in range(3000)]
    protocol = "".join(f"*3\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n${len(word)}\r\n{word}\r\n" for word in words)
    told = client([*cli, "--pipe"], input=protocol.encode())
    check(b"errors: 0, replies: 3000" in told, f"--pipe: {told!r}")
    check(client([*cli, "LRANGE", "list", "0", "-1"]).decode().split() == words, "LRANGE gives another list")
    total += 2 * len(protocol)
    bench = ["redis-benchmark", "-p", str(PORT), "-q", "-t", "set,get", "-d", "300"]
    client([*bench, "-n", "8000", "-c", "1"])
    client([*bench, "-n", "20000", "-c", "20"])
    client([*bench, "-n", "20000", "-c", "20", "-P", "16"])
    total += 48000 * 2 * 300
    subscriber = subprocess.Popen([*client_prefix, *cli, "SUBSCRIBE", "news"], stdout=subprocess.PIPE)
    started.append(subscriber)
    wait_for("a subscriber", lambda: client([*cli, "PUBSUB", "NUMSUB", "news"]).split()[-1] == b"1")
    sent = [f"item{n}" for n in range(200)]
    told = client(cli, input="".join(f"PUBLISH news {word}\n" for word in sent).encode())
    check(told.split() == [b"1"] * 200, "PUBLISH found no subscriber")
    heard = [subscriber.stdout.readline() for _ in range(3 + 3 * 200)]
    check([line.decode().strip() for line in heard[5::3]] == sent, "SUBSCRIBE gave other messages")
    stop(subscriber)
    stop(server)
    return total


def http(version="HTTP/1.0"):
    made = files([0, 1, 1000, 65536, 300000, 4 << 20])
    words = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", "files", "-p", version]
    server = serve([*words, str(PORT)], stderr=subprocess.DEVNULL)
    total = curl(made, times=4)
    stop(server)
    # A connection for each file may be over before it moves.
    return total if version == "HTTP/1.1" else 0


def http11():
    return http("HTTP/1.1")


def iperf3():
    total = 0
    for options in [], ["-R"], ["-P", "3"], ["--bidir"], ["-l", "1000", "-n", "3M"]:
        server = serve(["iperf3", "-s", "-1", "-p", str(PORT)], stdout=subprocess.DEVNULL)
        told = client(["iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-n", "200M", *options])
        check(b"iperf Done" in told, "iperf3 is not done")
        check(server.wait(40) == 0, f"the server ended with {server.returncode}")
        started.remove(server)
        total += (3 if "3M" in options else 200) << 20
    return total


def iperf():
    server = serve(["iperf", "-s", "-p", str(PORT)], stdout=subprocess.DEVNULL)
    total = 0
    for streams, options in (1, []), (3, []), (1, ["-R"]):
        told = client(["iperf", "-c", "127.0.0.1", "-p", str(PORT), "-n", "100M", "-P", str(streams), *options])
        check(b"100 MBytes" in told or b"300 MBytes" in told, f"iperf: {told.decode()}")
        total += streams * 100 << 20
    stop(server)
    return total


def netpipe():
    """NetPIPE compares all data itself."""
    total = 0
    has_both = bool(server_prefix and client_prefix)
    # The last one asks for sockets of AF_INET_SDP, which only the library knows.
    for family in [[], ["-A"]] if has_both else [[]]:
        words = ["NPtcp", "-P", str(PORT), "-i", "-n", "20", "-u", "300000", *family]
        server = serve(words, stdout=subprocess.DEVNULL)
        told = client([*words, "-h", "127.0.0.1"], stderr=subprocess.STDOUT).decode().splitlines()
        sizes = [line.split() for line in told if "Integrity check" in line]
        check(len(sizes) > 30 and all(line[-1] == "passed" for line in sizes), f"NPtcp: {told}")
        check(server.wait(40) == 0, f"the server ended with {server.returncode}")
        started.remove(server)
        # 86:  196609 bytes     10 times -->  Integrity check passed
        total += sum(int(line[1]) * int(line[3]) for line in sizes)
    return total


def sockperf():
    server = serve(["sockperf", "sr", "--tcp", "-i", "127.0.0.1", "-p", str(PORT)], stdout=subprocess.DEVNULL)
    told = client(["sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1", "-p", str(PORT), "-t", "1", "-m", "1400",
                   "--data-integrity"]).decode()
    # [Valid Duration] RunTime=0.550 sec; SentMessages=34167; ReceivedMessages=34167
    counts = {int(word.split("=")[1].rstrip(";")) for word in told.split() if "Messages=" in word}
    check(counts and min(counts) > 100, f"sockperf: {told}")
    stop(server)
    return 2 * 1400 * min(counts)


def socat():
    made = files([SIZE])
    server = serve(["socat", "-u", f"TCP-LISTEN:{PORT},reuseaddr", "OPEN:got,creat,trunc"])
    client(["socat", "-u", f"OPEN:files/{SIZE}", f"TCP:127.0.0.1:{PORT}"])
    check(server.wait(40) == 0, f"the server ended with {server.returncode}")
    started.remove(server)
    os.makedirs("back", exist_ok=True)
    shutil.move("got", f"back/{SIZE}")
    compare(made, "back")
    # A process for each connection, and a program in it that knows nothing of the ring.
    server = serve(["socat", f"TCP-LISTEN:{PORT},reuseaddr,fork", "EXEC:cat"])
    for n in range(3):
        data = noise(n, 500000)
        check(client(["socat", "-t", "20", "-", f"TCP:127.0.0.1:{PORT}"], input=data) == data, "cat sent something else")
    # The program has the connection itself.
    stop(server)
    server = serve(["socat", f"TCP-LISTEN:{PORT},reuseaddr,fork", "EXEC:cat,nofork"])
    data = noise(9, 500000)
    check(client(["socat", "-t", "20", "-", f"TCP:127.0.0.1:{PORT}"], input=data) == data, "cat sent something else")
    stop(server)
    return SIZE


def nc():
    made = files([SIZE])
    with open("got", "wb") as file:
        server = serve(["nc.openbsd", "-l", "127.0.0.1", str(PORT)], stdout=file)
    with open(f"files/{SIZE}", "rb") as file:
        client(["nc.openbsd", "-N", "127.0.0.1", str(PORT)], stdin=file)
    check(server.wait(40) == 0, f"the server ended with {server.returncode}")
    started.remove(server)
    os.makedirs("back", exist_ok=True)
    shutil.move("got", f"back/{SIZE}")
    compare(made, "back")
    return SIZE


NGINX = """
daemon off; worker_processes 2; error_log stderr error; pid nginx.pid;
events { worker_connections 200; }
http {
  access_log off; sendfile %s; keepalive_requests 500;
  client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
  server { listen 127.0.0.1:24801; root files; location /post { client_max_body_size 9m; return 200 "got"; } }
}
"""


def nginx(sendfile="off"):
    made = files([1, 1000, 65536, 300000, 2 << 20])
    with open("nginx.conf", "w") as file:
        file.write(NGINX % sendfile)
    server = serve(["nginx", "-p", os.getcwd(), "-c", "nginx.conf", "-e", "stderr"])
    total = curl(made, times=2)
    for _ in range(4):
        server.send_signal(1)
        total += curl(made)
    # Load while the workers are replaced.
    load = subprocess.Popen([*client_prefix, "wrk", "-t1", "-c10", "-d2s", f"{URL}/1000"], stdout=subprocess.PIPE)
    started.append(load)
    for _ in range(4):
        time.sleep(0.3)
        server.send_signal(1)
        total += curl(made)
    told = load.communicate(timeout=LIMIT)[0].decode()
    started.remove(load)
    check(load.returncode == 0 and "requests in" in told and "Non-2xx" not in told, f"wrk: {told}")
    stop(server)
    return total


def nginx_sendfile():
    return nginx("on")


APACHE = """
ServerRoot "%(here)s"
ServerName localhost
Listen 127.0.0.1:24801
PidFile apache.pid
DocumentRoot "%(here)s/files"
ErrorLog "%(here)s/error.log"
LogLevel error
EnableSendfile %(sendfile)s
EnableMMAP off
LoadModule mpm_%(mpm)s_module /usr/lib/apache2/modules/mod_mpm_%(mpm)s.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
Mutex file:%(here)s
"""


def apache(mpm="prefork", sendfile="off"):
    made = files([65536, 300000, 1 << 20, 80 << 20])
    with open("apache.conf", "w") as file:
        file.write(APACHE % {"here": os.getcwd(), "mpm": mpm, "sendfile": sendfile})
    server = serve(["apache2", "-d", os.getcwd(), "-f", "apache.conf", "-DFOREGROUND"])
    os.makedirs("got", exist_ok=True)
    total = 0
    for n in range(2):
        # SIGUSR1: new children take the place of the old ones.
        if n == 1:
            server.send_signal(10)
        for name in made:
            client(["wget", "-q", "-O", f"got/{name}", f"{URL}/{name}"])
            total += int(name)
        compare(made, "got")
    if mpm == "prefork":
        total += large_file()
    stop(server)
    return total


def hash_of(file):
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    return digest.digest()


def large_file():
    """A gigabyte, of which a part is not zero, through wget, and nowhere else."""
    size = 1 << 30
    with open("files/large", "wb") as file:
        for n in range(16):
            file.seek(n * 67_000_001)
            file.write(noise(n, 65536))
        file.truncate(size)
    wget = subprocess.Popen([*client_prefix, "wget", "-q", "-O", "-", f"{URL}/large"], stdout=subprocess.PIPE)
    started.append(wget)
    got = hash_of(wget.stdout)
    check(wget.wait(LIMIT) == 0, f"wget ended with {wget.returncode}")
    started.remove(wget)
    with open("files/large", "rb") as file:
        check(got == hash_of(file), "the large file is not what was sent")
    return size


def apache_event():
    return apache("event", "on")


def memcached():
    server = serve(["memcached", "-p", str(PORT), "-U", "0", "-l", "127.0.0.1", "-t", "2"])
    total = int(client([sys.executable, HERE, "serve", "memcached_client", str(PORT)]))
    stop(server)
    return total


def postgres():
    found = sorted(os.listdir("/usr/lib/postgresql"))
    bin_ = f"/usr/lib/postgresql/{found[-1]}/bin"
    made = subprocess.run([f"{bin_}/initdb", "-D", "data", "-A", "trust", "-U", "me", "--no-sync", "--locale=C"],
                          stdout=subprocess.DEVNULL, timeout=LIMIT)
    check(made.returncode == 0, "initdb failed")
    settings = {"port": PORT, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
                "shared_buffers": "16MB", "autovacuum": "off"}
    words = [f"{bin_}/postgres", "-D", "data"]
    for key, value in settings.items():
        words += ["-c", f"{key}={value}"]
    server = serve(words, stderr=open("postgres.log", "w"))
    at = ["-h", "127.0.0.1", "-p", str(PORT), "-U", "me"]
    wait_for("the database is ready", lambda: subprocess.run(["pg_isready", "-q", *at]).returncode == 0, server)
    client(["pgbench", "-q", "-i", *at, "postgres"], stderr=subprocess.DEVNULL)
    told = client(["pgbench", *at, "-c", "4", "-j", "2", "-t", "100", "postgres"], stderr=subprocess.STDOUT)
    check(b"actually processed: 400/400" in told, f"pgbench: {told.decode()}")
    ask = ["psql", *at, "-A", "-t", "-c"]
    sums = "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
    check(client([*ask, sums, "postgres"]).strip() == b"t", "the balances are not what the history says")
    text = client([*ask, "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 30000) n", "postgres"])
    check(text.decode().strip() == "".join(hashlib.md5(str(n).encode()).hexdigest() for n in range(1, 30001)),
          "a long row came damaged")
    server.send_signal(2)
    check(server.wait(40) == 0, f"the server ended with {server.returncode}")
    started.remove(server)
    return len(text)


def python(name, argument=""):
    """A server and a client of this project's, in Python (`peers.py`)."""
    server = serve([sys.executable, HERE, "serve", f"{name}_server", str(PORT), argument])
    told = client([sys.executable, HERE, "serve", f"{name}_client", str(PORT), argument])
    stop(server)
    return int(told)


def asyncio():
    return python("asyncio")


def multiprocessing():
    return python("multiprocessing")


def go():
    """A Go program cannot be preloaded: it stays with TCP, whoever it talks to."""
    program = os.path.join(os.path.dirname(HERE), "go-peer")
    server = serve([program, "serve", str(PORT)])
    client([sys.executable, HERE, "serve", "echo_client", str(PORT)])
    stop(server)
    server = serve([sys.executable, HERE, "serve", "echo_server", str(PORT)])
    client([program, "call", str(PORT)])
    stop(server)
    return 0


def inside_run():
    """Both libraries wrap calls of the C library: `run` around `sock` for the server, `sock` around `run` for the
    client. RDMA and TCP work at one time."""
    run = [sys.argv[3], "run", "--"]
    server_prefix[:] = [*run, *server_prefix]
    client_prefix[:] = [*client_prefix, *run]
    address = ["-a", "127.0.0.1", "-p", str(PORT + 1), "-V", "-C", "20"]
    rdma = start(["rping", "-s", *address])
    # Until the server listens, the connection is refused.
    wait_for("rping ends well", lambda: subprocess.run([*client_prefix, "rping", "-c", *address],
             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT).returncode == 0, rdma)
    check(rdma.wait(LIMIT) == 0, f"rping's server ended with {rdma.returncode}")
    started.remove(rdma)
    return http11()


def told(*words):
    """What softrnic says of processes."""
    done = subprocess.run([sys.argv[3], *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=LIMIT)
    return done.stdout.decode()


def outside(pid):
    """The number that a process of this case has in /proc, which may be another namespace's."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/status") as status:
                own = next(line for line in status if line.startswith("NSpid:")).split()[-1]
            if own == str(pid) and os.readlink(f"/proc/{name}/ns/pid") == os.readlink("/proc/self/ns/pid"):
                return int(name)
        except OSError:
            pass
    raise Wrong(f"{pid} is not in /proc")


def shown():
    """`top --sockets` and `doctor` show each end of a connection: by which way it goes, why, and what was counted."""
    peer = [sys.executable, HERE, "serve"]
    server = serve([*peer, "echo_server", str(PORT)])
    near = subprocess.Popen([*client_prefix, *peer, "talk_until_told", str(PORT)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE)
    started.append(near)
    far_pid, near_pid = outside(server.pid), outside(near.pid)
    ends = {far_pid: bool(server_prefix), near_pid: bool(client_prefix)}
    moves = all(ends.values())

    def connections(pid):
        return json.loads(told("top", "--sockets", "--once", "--json", str(pid)))

    def is_counted(end):
        counts = [end[name] for name in ("sent", "received", "wakes", "sleeps")]
        return all(count > 0 for count in counts) if moves else end["why"] and not any(counts)

    # They talk all the time: what is to be counted comes.
    for pid in [pid for pid, has_library in ends.items() if has_library]:
        wait_for("the connection is shown", lambda: [is_counted(end) for end in connections(pid)] == [True])
    near.stdin.write(b"fill\n")
    near.stdin.flush()
    check(near.stdout.readline() == b"full\n", "the client does not fill the connection")
    way = "memory" if moves else "TCP"
    for pid, has_library in ends.items():
        shown = connections(pid)
        text = told("top", "--sockets", "--once", str(pid))
        if not has_library:
            check(shown == [], f"connections of a program without the library: {shown}")
            continue
        check(len(shown) == 1, f"not one connection: {shown}")
        end = shown[0]
        check((end["sends"], end["receives"]) == (way, way), f"not {way}: {end}")
        check(moves == (end["why"] == ""), f"why: {end}")
        check(f":{PORT}" in end["local"] + end["remote"], f"other addresses: {end}")
        check(way in text and end["local"] in text and end["why"] in text, f"not so in the text: {text}")
        doctor = told("doctor", str(pid))
        check(f"{int(moves)} of 1 TCP connections in memory" in doctor and end["why"] in doctor, f"doctor: {doctor}")
    if moves:
        check(connections(near_pid)[0]["stalls"] > 0, "no stall of a sender without room is shown")
    near.stdin.close()
    check(near.wait(LIMIT) == 0, f"the client ended with {near.returncode}")
    started.remove(near)
    stop(server)
    return 0


CASES = {
    "redis": redis, "http": http, "http11": http11, "iperf": iperf, "iperf3": iperf3,
    "netpipe": netpipe, "sockperf": sockperf, "socat": socat, "nc": nc, "nginx": nginx,
    "nginx-sendfile": nginx_sendfile, "apache": apache, "apache-event": apache_event, "memcached": memcached,
    "postgres": postgres, "asyncio": asyncio, "multiprocessing": multiprocessing, "go": go,
    "inside-run": inside_run, "shown": shown,
}


def main():
    if sys.argv[1] == "serve":
        return getattr(peers, sys.argv[2])(*[word for word in sys.argv[3:] if word])
    case, sides, softrnic = sys.argv[1:4]
    own_network = os.environ.get("OWN_NETWORK") == "1"
    if sides in ("server", "both"):
        server_prefix.extend([softrnic, "sock", "--"])
    if sides in ("client", "both"):
        client_prefix.extend([softrnic, "sock", "--"])
    home = tempfile.mkdtemp()
    os.chdir(home)
    before = carried()
    try:
        total = CASES[case]()
        by_tcp = carried() - before
        print(f"{case} {sides}: {total} bytes of data, {by_tcp} bytes by TCP")
        if own_network and total and sides == "both":
            check(by_tcp < 0.7 * total, f"the connections did not move: {by_tcp} of {total} bytes went by TCP")
        elif own_network and total:
            check(by_tcp >= total, f"only {by_tcp} of {total} bytes went by TCP")
    except (Wrong, subprocess.TimeoutExpired) as wrong:
        print(f"{case} {sides}: {wrong}")
        return 1
    finally:
        for child in started:
            child.kill()
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
