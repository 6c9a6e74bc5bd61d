"""Servers and clients of the suite `sock` that are programs of Python (`cases.py serve NAME PORT`)."""
import asyncio
import hashlib
import multiprocessing
import multiprocessing.connection
import os
import random
import select
import signal
import socket
import sys
import threading


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def end_on_term():
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


# An echo by plain blocking calls, a thread for each connection.

def echo_server(port):
    end_on_term()
    listener = socket.create_server(("127.0.0.1", int(port)), backlog=50)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def echo(connection):
    with connection:
        while data := connection.recv(70000):
            connection.sendall(data)


def talk_until_told(port):
    """Talk until a line comes, fill the connection then, and end with the input."""
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        while not select.select([sys.stdin], [], [], 0)[0]:
            connection.sendall(b"x" * 100)
            left = 100
            while left:
                data = connection.recv(left)
                if not data:
                    raise EOFError
                left -= len(data)
        sys.stdin.readline()
        connection.setblocking(False)
        try:
            while True:
                connection.send(b"x" * 60000)
        except BlockingIOError:
            print("full", flush=True)
        sys.stdin.readline()
    os._exit(0)


def echo_client(port):
    total = 0
    for n in range(4):
        with socket.create_connection(("127.0.0.1", int(port))) as connection:
            for size in [1, 2, 1000, 5000, 70000] * 8:
                data = noise(size, size)
                sender = threading.Thread(target=connection.sendall, args=(data,))
                sender.start()
                back = b""
                while len(back) < size:
                    more = connection.recv(size - len(back))
                    assert more, "the connection ended"
                    back += more
                sender.join()
                assert back == data, "the echo is not what was sent"
                total += 2 * size
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b"", "the end was expected"
    print(total)


# asyncio: length and data, answered by the hash and the data.

async def asyncio_answer(reader, writer):
    try:
        while head := await reader.read(1):
            head += await reader.readexactly(3)
            data = await reader.readexactly(int.from_bytes(head, "big"))
            writer.write(hashlib.sha256(data).digest())
            writer.write(data)
            await writer.drain()
    finally:
        writer.close()


def asyncio_server(port):
    async def main():
        server = await asyncio.start_server(asyncio_answer, "127.0.0.1", int(port))
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server.close)
        try:
            await server.serve_forever()
        except asyncio.CancelledError:
            pass

    asyncio.run(main())


def asyncio_client(port):
    async def one(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
        choose, total = random.Random(number), 0
        for n in range(60):
            data = noise(n, choose.choice([1, 10, 1000, 20000, 200000]))
            writer.write(len(data).to_bytes(4, "big") + data)
            await writer.drain()
            assert await reader.readexactly(32) == hashlib.sha256(data).digest(), "another hash"
            assert await reader.readexactly(len(data)) == data, "other data"
            total += 2 * len(data)
        writer.close()
        await writer.wait_closed()
        return total

    async def main():
        print(sum(await asyncio.gather(*(one(number) for number in range(12)))))

    asyncio.run(main())


# multiprocessing: a process is forked for each connection after accept; the clients are a pool of processes.

def multiprocessing_serve(connection):
    while True:
        try:
            what = connection.recv()
        except EOFError:
            break
        connection.send((hashlib.sha256(what).hexdigest(), what))
    # The interpreter's end is not worth waiting for.
    os._exit(0)


def multiprocessing_server(port):
    end_on_term()
    multiprocessing.set_start_method("fork")
    listener = multiprocessing.connection.Listener(("127.0.0.1", int(port)), backlog=20, authkey=b"key")
    children = []
    while True:
        connection = listener.accept()
        children.append(multiprocessing.Process(target=multiprocessing_serve, args=(connection,)))
        children[-1].start()
        connection.close()


def multiprocessing_call(arguments):
    port, number = arguments
    total = 0
    with multiprocessing.connection.Client(("127.0.0.1", port), authkey=b"key") as connection:
        for n in range(30):
            data = noise(number * 100 + n, [1, 100, 5000, 60000, 300000][n % 5])
            connection.send(data)
            digest, back = connection.recv()
            assert digest == hashlib.sha256(data).hexdigest() and back == data, "other data"
            total += 2 * len(data)
    return total


def multiprocessing_client(port):
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(4) as pool:
        print(sum(pool.map(multiprocessing_call, [(int(port), number) for number in range(8)])))


# memcached's protocol of text, one command at a time and many at once.

def memcached_client(port):
    values = {f"key{n}": noise(n, size).hex() for n, size in enumerate([1, 100, 1000, 5000, 50000, 400000])}
    total = 0
    with socket.create_connection(("127.0.0.1", int(port))) as connection:
        answers = connection.makefile("rb")
        for _ in range(3):
            for key, value in values.items():
                connection.sendall(f"set {key} 0 0 {len(value)}\r\n{value}\r\n".encode())
                assert answers.readline() == b"STORED\r\n", "set was not answered by STORED"
            for key, value in values.items():
                connection.sendall(f"get {key}\r\n".encode())
                memcached_value(answers, key, value)
                total += 2 * len(value)
        many = [f"many{n}" for n in range(2000)]
        connection.sendall("".join(f"set {key} 0 0 {len(key)}\r\n{key}\r\n" for key in many).encode())
        for key in many:
            assert answers.readline() == b"STORED\r\n", f"{key} was not stored"
        connection.sendall("".join(f"get {key}\r\n" for key in many).encode())
        for key in many:
            memcached_value(answers, key, key)
    print(total)


def memcached_value(answers, key, value):
    head = f"VALUE {key} 0 {len(value)}\r\n".encode()
    assert answers.readline() == head, f"{key} has no value"
    assert answers.read(len(value) + 2) == value.encode() + b"\r\n", f"{key} has another value"
    assert answers.readline() == b"END\r\n", "END was expected"
