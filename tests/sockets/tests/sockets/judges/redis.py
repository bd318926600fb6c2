import random, socket, sys
used = [socket.create_connection((sys.argv[1], int(sys.argv[2]))) for _ in range(40)]
files = [one.makefile("rb") for one in used]
random.seed(5)
for number in range(4000):
    which = random.randrange(40)
    key, value = b"key%d.%d" % (which, number % 50), random.randbytes(random.choice([1, 50, 3000, 30000]))
    used[which].sendall(b"*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n" % (len(key), key, len(value), value))
    assert files[which].readline() == b"+OK\r\n"
    used[which].sendall(b"*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n" % (len(key), key))
    wanted = b"$%d\r\n%s\r\n" % (len(value), value)
    assert files[which].read(len(wanted)) == wanted
print("done", flush=True)
sys.stdin.read()
