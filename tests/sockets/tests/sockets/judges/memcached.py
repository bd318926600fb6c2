import random, socket, sys, threading
address = (sys.argv[1], 7000)
idle = [socket.create_connection(address) for _ in range(200)]
failed = []
kept = []

def work(number):
    numbers = random.Random(number)
    used = [socket.create_connection(address) for _ in range(25)]
    kept.append(used)
    for turn in range(1500):
        key, value = b"key%d.%d" % (number, turn % 100), numbers.randbytes(numbers.choice([1, 50, 3000, 30000]))
        one, other = numbers.choice(used), numbers.choice(used)
        one.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        assert one.recv(100) == b"STORED\r\n"
        other.sendall(b"get %s\r\n" % key)
        wanted = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key, len(value), value)
        got = b""
        while len(got) < len(wanted):
            got += other.recv(1 << 20)
        assert got == wanted

threading.excepthook = lambda fault: failed.append(fault)
threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done" if not failed else failed, flush=True)
sys.stdin.read()
