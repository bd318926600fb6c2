"""Sets and gets values of random sizes at a Redis, compares them, and keeps the connection until it is told to end."""

import os
import random
import sys
import time

import redis

host, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LARGEST = 100_000
database = redis.Redis(host=host, port=port)
chance, noise = random.Random(count), os.urandom(LARGEST)
for number in range(count):
    size = chance.randrange(LARGEST + 1)
    at = chance.randrange(LARGEST - size + 1)
    key, value = f"key{number % 64}", noise[at : at + size]
    database.set(key, value)
    assert database.get(key) == value, f"value {number} of {size} bytes"
open("/exchange/all", "w").close()
while not os.path.exists("/exchange/end"):
    time.sleep(0.1)
assert database.ping()
