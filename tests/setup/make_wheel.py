#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""make_wheel.py FOLDER NAME MEMBER SIZE: writes a small Python package that holds MEMBER, SIZE bytes that depend on NAME.

Prints the package's size and sha256 and then the bytes themselves, in hexadecimal."""
import hashlib
import sys
import zipfile
from pathlib import Path

folder, name, member, size = sys.argv[1:]
content = b""
while len(content) < int(size):
    content += hashlib.sha256(name.encode() + len(content).to_bytes(8, "little")).digest()
content = content[:int(size)]

info = f"{name}-1.0.dist-info"
path = Path(folder) / f"{name}-1.0-py3-none-any.whl"
with zipfile.ZipFile(path, "w") as wheel:
    wheel.writestr(member, content)
    wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(f"{info}/RECORD", "")
print(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest(), content.hex())
