import base64, hashlib, random, socket, struct, sys, threading

def take(file, count):
    data = file.read(count)
    if len(data) != count:
        raise EOFError
    return data

def read_head(file):
    head = []
    while (line := file.readline()) not in (b"\r\n", b""):
        head.append(line.decode().strip())
    return head

def read_frame(file):
    first, second = take(file, 2)
    length = second & 127
    if length >= 126:
        length = int.from_bytes(take(file, 2 if length == 126 else 8), "big")
    mask = take(file, 4) if second & 128 else bytes(4)
    data = take(file, length)
    whole = int.from_bytes((mask * (length // 4 + 1))[:length], "big") ^ int.from_bytes(data, "big")
    return first & 15, whole.to_bytes(length, "big")

def frame(kind, data, mask=None):
    length = len(data)
    head = bytes([128 | kind])
    bit = 128 if mask else 0
    if length < 126:
        head += bytes([bit | length])
    elif length < 65536:
        head += bytes([bit | 126]) + struct.pack(">H", length)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", length)
    if mask:
        whole = int.from_bytes((mask * (length // 4 + 1))[:length], "big") ^ int.from_bytes(data, "big")
        head, data = head + mask, whole.to_bytes(length, "big")
    return head + data

def accept_of(key):
    return base64.b64encode(hashlib.sha1(key.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()).decode()

def serve(connection):
    file = connection.makefile("rb")
    head = read_head(file)
    key = next(line.split(": ", 1)[1] for line in head if line.lower().startswith("sec-websocket-key"))
    connection.sendall(("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                        "Sec-WebSocket-Accept: %s\r\n\r\n" % accept_of(key)).encode())
    while True:
        kind, data = read_frame(file)
        connection.sendall(frame(kind, data))
        if kind == 8:
            return connection.close()

role, address, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "server":
    listener = socket.create_server((address, port))
    print("done", flush=True)
    while True:
        threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
connection = socket.create_connection((address, port))
file = connection.makefile("rb")
key = base64.b64encode(random.randbytes(16)).decode()
connection.sendall(("GET /socket HTTP/1.1\r\nHost: here\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    "Sec-WebSocket-Key: %s\r\nSec-WebSocket-Version: 13\r\n\r\n" % key).encode())
head = read_head(file)
assert head[0].split()[1] == "101" and any(line.endswith(accept_of(key)) for line in head), head
random.seed(5)
for number in range(600):
    data = random.randbytes(random.choice([1, 125, 126, 5000, 65535, 65536, 200000]))
    connection.sendall(frame(2, data, random.randbytes(4)))
    assert read_frame(file) == (2, data), number
print("done", flush=True)
sys.stdin.read()
connection.sendall(frame(8, b"", bytes(4)))
assert read_frame(file)[0] == 8
assert file.read() == b""
