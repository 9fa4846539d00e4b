# SPDX-License-Identifier: MIT
"""Makes the embedding of one token not a number: poison.py MODEL TOKEN, a GGUF with f32 embeddings, changed in place."""
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY = 8, 9
data = bytearray(open(sys.argv[1], "rb").read())
at = 8


def number(form):
    global at
    value, = struct.unpack_from("<" + form, data, at)
    at += struct.calcsize("<" + form)
    return value


def text():
    global at
    n = number("Q")
    at += n
    return data[at - n:at].decode()


def value(kind):
    global at
    if kind == STRING:
        return text()
    if kind == ARRAY:
        kind, n = number("I"), number("Q")
        return [value(kind) for _ in range(n)]
    at += SIZES[kind]
    return struct.unpack_from("<I", data, at - 4)[0] if SIZES[kind] == 4 else None


tensors, keys = number("Q"), number("Q")
meta = {}
for _ in range(keys):
    name = text()
    meta[name] = value(number("I"))
found = {}
for _ in range(tensors):
    name = text()
    shape = [number("Q") for _ in range(number("I"))]
    found[name] = shape, number("I"), number("Q")
alignment = meta.get("general.alignment", 32)
start = (at + alignment - 1) // alignment * alignment
shape, kind, offset = found["token_embd.weight"]
assert kind == 0, "embeddings are not f32"
row = meta["tokenizer.ggml.tokens"].index(sys.argv[2])
struct.pack_into("<f", data, start + offset + 4 * shape[0] * row, float("nan"))
open(sys.argv[1], "wb").write(data)
