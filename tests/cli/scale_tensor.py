#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""scale_tensor.py FILE FACTOR TENSOR...: multiplies f32 tensors of a GGUF file where they lie."""
import array
import struct
import sys

SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
STRING, ARRAY, F32 = 8, 9, 0


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 24

    def take(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize("<" + form)
        return value

    def text(self):
        n = self.take("Q")
        self.at += n
        return bytes(self.data[self.at - n : self.at]).decode()

    def skip(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, n = self.take("I"), self.take("Q")
            for _ in range(n):
                self.skip(inner)
        else:
            self.at += SIZES[kind]


def tensors(data):
    """{name: (first byte, values)}; the alignment is the usual 32."""
    r, found = Reader(data), {}
    n, keys = struct.unpack_from("<QQ", data, 8)
    for _ in range(keys):
        r.text()
        r.skip(r.take("I"))
    for _ in range(n):
        name, size = r.text(), 1
        for _ in range(r.take("I")):
            size *= r.take("Q")
        assert r.take("I") == F32 or name not in sys.argv[3:], f"{name} is not f32"
        found[name] = (r.take("Q"), size)
    begin = -(-r.at // 32) * 32
    return {name: (begin + offset, size) for name, (offset, size) in found.items()}


path, factor = sys.argv[1], float(sys.argv[2])
data = bytearray(open(path, "rb").read())
known = tensors(data)
for name in sys.argv[3:]:
    at, n = known[name]
    values = array.array("f", bytes(data[at : at + 4 * n]))
    data[at : at + 4 * n] = array.array("f", [x * factor for x in values]).tobytes()
open(path, "wb").write(data)
