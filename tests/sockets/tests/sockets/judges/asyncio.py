import asyncio, random, sys

async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()

async def server(address):
    listener = await asyncio.start_server(serve, address, 7000)
    print("done", flush=True)
    await listener.serve_forever()

async def client(address, number, finished, all_finished):
    reader, writer = await asyncio.open_connection(address, 7000)
    random_bytes = random.Random(number)
    for _ in range(100):
        data = random_bytes.randbytes(random_bytes.choice([1, 100, 5000, 30000]))
        writer.write(data)
        assert await reader.readexactly(len(data)) == data
    data = random_bytes.randbytes(200000)
    async def send():
        writer.write(data)
        await writer.drain()
    _, got = await asyncio.gather(send(), reader.readexactly(len(data)))
    assert got == data
    finished()
    await all_finished.wait()
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()

async def clients(address):
    count, all_finished = 0, asyncio.Event()
    quiet = asyncio.Event()
    def finished():
        nonlocal count
        count += 1
        if count == 50:
            quiet.set()
    tasks = [asyncio.create_task(client(address, number, finished, all_finished)) for number in range(50)]
    waiting = asyncio.create_task(quiet.wait())
    await asyncio.wait([waiting, *tasks], return_when=asyncio.FIRST_COMPLETED)
    print("done" if quiet.is_set() else "a client failed", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    all_finished.set()
    await asyncio.gather(*tasks)

asyncio.run({"server": server, "clients": clients}[sys.argv[1]](sys.argv[2]))
