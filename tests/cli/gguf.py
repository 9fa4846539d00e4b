# SPDX-License-Identifier: MIT
"""Writes small GGUF files with chosen keys, for tests of headers: gguf.py OUT KEY=VALUE...

Values: 12 (uint32), "text" (string), [1,2] (array of int32), true. --tensor BYTES adds one f32 tensor with that much data;
--cut N leaves the last N bytes of the file away.
"""
import json
import struct
import sys

UINT32, INT32, BOOL, STRING, ARRAY = 4, 5, 7, 8, 9
ALIGN = 32


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value(text):
    try:
        v = json.loads(text)
    except ValueError:
        v = text
    if isinstance(v, bool):
        return struct.pack("<I?", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", UINT32, v)
    if isinstance(v, list):
        if v and isinstance(v[0], bool):
            return struct.pack("<IIQ", ARRAY, BOOL, len(v)) + bytes(v)
        return struct.pack("<IIQ", ARRAY, INT32, len(v)) + struct.pack("<%di" % len(v), *v)
    return struct.pack("<I", STRING) + string(v)


def main():
    keys, tensor, cut = [], 0, 0
    words = iter(sys.argv[2:])
    for word in words:
        if word == "--tensor":
            tensor = int(next(words))
        elif word == "--cut":
            cut = int(next(words))
        else:
            keys.append(word.split("=", 1))
    data = b"GGUF" + struct.pack("<IQQ", 3, 1 if tensor else 0, len(keys))
    for key, text in keys:
        data += string(key) + value(text)
    if tensor:
        data += string("token_embd.weight") + struct.pack("<IQIQ", 1, tensor // 4, 0, 0)
        data += bytes(-len(data) % ALIGN) + bytes(tensor)
    with open(sys.argv[1], "wb") as out:
        out.write(data[:len(data) - cut])


main()
