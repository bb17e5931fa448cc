"""Keeps the code of one GPU architecture in a shared library, so that it can travel: NVIDIA's nvprune takes no .so.

    keep_architecture.py LIBRARY OUTPUT 90

A fat binary is a header (magic number, version, its size, the size of what follows) and one entry for each architecture.
Entries of other architectures go, those that stay move to the front, and the rest becomes zeros, which compress to
nothing; addresses in the library stay as they are. A fat binary without the architecture stays whole: its kernels are
then missing as they were before.
"""

import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)
ELF = 2  # an entry's kind; PTX is 1


def keep(data, architecture):
    """@returns bytes of all fat binaries before and after"""
    before = after = position = 0
    while (start := data.find(MAGIC, position)) >= 0:
        version, header_bytes, size = struct.unpack_from("<HHQ", data, start + 4)
        if version != 1 or header_bytes != 16 or start + header_bytes + size > len(data):
            position = start + len(MAGIC)
            continue
        first = start + header_bytes
        end = first + size
        kept = bytearray()
        entry = first
        while entry < end:
            kind, _, entry_header_bytes, payload_bytes = struct.unpack_from("<HHIQ", data, entry)
            (entry_architecture,) = struct.unpack_from("<I", data, entry + 28)
            next_entry = entry + entry_header_bytes + payload_bytes
            if next_entry <= entry or next_entry > end:
                raise ValueError(f"the fat binary at byte {start} has an entry that does not end in it")
            if kind == ELF and entry_architecture == architecture:
                kept += data[entry:next_entry]
            entry = next_entry
        before += size
        if kept:
            data[first:end] = kept + bytes(size - len(kept))
            struct.pack_into("<Q", data, start + 8, len(kept))
        after += len(kept) or size
        position = end
    return before, after


def main():
    library, output, architecture = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(library, "rb") as file:
        data = bytearray(file.read())
    before, after = keep(data, architecture)
    if after == before:
        raise SystemExit(f"{library} has no code of sm_{architecture} beside other code")
    with open(output, "wb") as file:
        file.write(data)
    print(f"{library}: {before >> 20} MiB of GPU code, {after >> 20} MiB kept")


if __name__ == "__main__":
    main()
