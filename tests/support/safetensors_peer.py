"""The other side of tests/programs/safetensors_probe.cpp: reads its files and writes files for it, by the format alone,
and by the package safetensors where it is installed.

  safetensors_peer.py read FOLDER LISTS       files of dtrain's: every tensor has the bytes that follow from its name
  safetensors_peer.py write FOLDER LISTS      files of random lists
  safetensors_peer.py stale FOLDER            the first file again, with its metadata and other bytes
  safetensors_peer.py print FILE              each tensor's name, type, shape and first elements
  safetensors_peer.py package                 prints the package's version; exit code 1 without it
"""

import ctypes
import hashlib
import json
import math
import pathlib
import random
import struct
import sys

try:
    import safetensors
except ImportError:
    safetensors = None

SIZES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "F8_E4M3": 1, "F8_E5M2": 1}
# Further types of LibTorch's tensors.
OTHERS = {"BOOL": 1, "I8": 1, "I16": 2, "C64": 8}
# The package's names of the types when it writes.
NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "U8": "uint8",
         "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}


def bytes_of(name, count):
    total = sum(name.encode())
    return bytes((total + 7 * k) % 256 for k in range(count))


def read(content):
    """The tensors of a file: {name: (dtype, shape, bytes)}, and its metadata."""
    length, = struct.unpack_from("<Q", content)
    assert length % 8 == 0
    header = json.loads(content[8:8 + length])
    metadata = header.pop("__metadata__", {})
    elements = content[8 + length:]
    end = 0
    for entry in sorted(header.values(), key=lambda each: each["data_offsets"]):
        assert entry["data_offsets"][0] == end, "no gaps"
        end = entry["data_offsets"][1]
        assert entry["data_offsets"][0] % (SIZES | OTHERS)[entry["dtype"]] == 0, "aligned"
    assert end == len(elements)
    return {name: (entry["dtype"], entry["shape"], elements[slice(*entry["data_offsets"])]) for name, entry in header.items()}, metadata


def check(content):
    tensors, metadata = read(content)
    digits = metadata["dtrain.sha256"].encode()
    at = content.index(digits)
    assert hashlib.sha256(content[:at] + b"0" * 64 + content[at + 64:]).hexdigest().encode() == digits, "the digest"
    assert metadata["format"] == "pt"
    if safetensors is not None:
        theirs = {name: (each["dtype"], each["shape"], bytes(each["data"])) for name, each in safetensors.deserialize(content)}
        assert theirs == tensors, "the package reads the same"
    for name, (dtype, shape, data) in tensors.items():
        assert len(data) == math.prod(shape) * SIZES[dtype]
        assert data == bytes_of(name, len(data)), name


def random_list(source):
    tensors = {}
    for _ in range(source.randrange(9)):
        name = "".join(source.choice(["a", "weight", ".", '"', "\\", "\n", "\0", "é", "\x7f", "\U0001f600", "/"]) for _ in range(source.randrange(6)))
        if name == "__metadata__":
            continue
        shape = [source.randrange(5) for _ in range(source.randrange(6))]
        dtype = source.choice(list(SIZES))
        tensors[name] = (dtype, shape, bytes_of(name, math.prod(shape) * SIZES[dtype]))
    return tensors


def serialized(tensors, metadata, source):
    if safetensors is not None and tensors and source.random() < 0.5:  # version 0.8.0 writes no JSON for an empty list with metadata
        if not hasattr(safetensors, "TensorSpec"):  # before version 0.8
            return safetensors.serialize({name: {"dtype": NAMES[dtype], "shape": shape, "data": data} for name, (dtype, shape, data) in tensors.items()},
                                         metadata)
        buffers = {name: ctypes.create_string_buffer(data, max(len(data), 1)) for name, (_, _, data) in tensors.items()}
        return bytes(safetensors.serialize({name: safetensors.TensorSpec(dtype=NAMES[dtype], shape=shape, data_ptr=ctypes.addressof(buffers[name]),
                                                                         data_len=len(data)) for name, (dtype, shape, data) in tensors.items()}, metadata))
    header, elements = {}, b""
    for name, (dtype, shape, data) in tensors.items():  # in any order, not aligned
        header[name] = {"shape": shape, "data_offsets": [len(elements), len(elements) + len(data)], "dtype": dtype}
        elements += data
    if metadata is not None:
        header["__metadata__"] = metadata
    text = json.dumps(header, ensure_ascii=source.random() < 0.5, indent=source.choice([None, 1])).encode()
    return struct.pack("<Q", len(text)) + text + elements


def main():
    if sys.argv[1] == "package":
        print(safetensors.__version__ if safetensors is not None else "none")
        return 0 if safetensors is not None else 1
    folder = pathlib.Path(sys.argv[2])
    if sys.argv[1] == "print":
        for name, (dtype, shape, data) in read(folder.read_bytes())[0].items():
            layout = {"F64": "d", "F32": "f", "I64": "q", "I32": "i"}.get(dtype, "B")
            values = struct.unpack(f"<{len(data) // struct.calcsize(layout)}{layout}", data)[:16]
            print(name, dtype, shape, " ".join(value.hex() if isinstance(value, float) else str(value) for value in values))
        return 0
    source = random.Random(2027)
    if sys.argv[1] == "stale":  # what a program does that changes a tensor and copies the metadata
        path = folder / "0.safetensors"
        tensors, metadata = read(path.read_bytes())
        path.write_bytes(serialized(tensors, metadata, random.Random(1)))
        return 0
    for number in range(int(sys.argv[3])):
        path = folder / f"{number}.safetensors"
        if sys.argv[1] == "read":
            check(path.read_bytes())
        else:
            metadata = source.choice([None, {}, {"format": "np", "é": "\n"}])
            path.write_bytes(serialized(random_list(source), metadata, source))
    return 0


if __name__ == "__main__":
    sys.exit(main())
