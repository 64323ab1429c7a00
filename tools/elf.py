"""Reads which libraries an ELF library asks the loader for, without tools and without loading
it."""

import struct

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NULL, _DT_NEEDED, _DT_STRTAB = 0, 1, 5
_LONGEST_NAME = 256
_LARGEST_TABLE = 1 << 20
_LARGEST_FILE = 1 << 40


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF library, or is cut short."""


def needed_libraries(path):
    """The DT_NEEDED names of the library at `path`, in file order, such as ["libc10.so",
    "libcudart.so.13"]."""
    with open(path, "rb") as file:
        read = _Reader(file, path)
        if read.bytes(0, 6, "header") != b"\x7fELF\x02\x01":
            raise NotElf(f"{path} is not a 64-bit little-endian ELF file")
        (table,) = read.unpack("<Q", 32, "header")
        entry_size, count = read.unpack("<HH", 54, "header")

        loaded, dynamic = [], None
        for i in range(count):
            kind, _, offset, address, _, size = read.unpack(
                "<IIQQQQ", table + i * entry_size, "program headers"
            )
            if kind == _PT_LOAD:
                loaded.append((address, offset, size))
            elif kind == _PT_DYNAMIC:
                dynamic = (offset, size)
        if dynamic is None:
            raise NotElf(f"{path} is not a dynamic library")

        offset, size = dynamic
        entries = struct.iter_unpack("<QQ", read.bytes(offset, size - size % 16, "dynamic section"))
        names, strings = [], None
        for tag, value in entries:
            if tag == _DT_NULL:
                break
            if tag == _DT_NEEDED:
                names.append(value)
            elif tag == _DT_STRTAB:
                strings = next((value - a + o for a, o, s in loaded if a <= value < a + s), None)
        if strings is None:
            raise NotElf(f"{path} has no string table")
        return [read.name(strings + name) for name in names]


class _Reader:
    """Reads a file at an offset; whatever is too large or not in the file is NotElf."""

    def __init__(self, file, path):
        self.file, self.path = file, path

    def bytes(self, offset, size, what):
        if size > _LARGEST_TABLE:
            raise NotElf(f"{self.path}: the {what} cannot be that large")
        found = self._read(offset, size)
        if len(found) < size:
            raise NotElf(f"{self.path} ends inside its {what}")
        return found

    def unpack(self, form, offset, what):
        return struct.unpack(form, self.bytes(offset, struct.calcsize(form), what))

    def name(self, offset):
        name, end, _ = self._read(offset, _LONGEST_NAME).partition(b"\0")
        if not end:
            raise NotElf(f"{self.path} ends inside its string table")
        return name.decode("utf-8", "replace")

    def _read(self, offset, size):
        if not 0 <= offset < _LARGEST_FILE:
            raise NotElf(f"{self.path} names a place outside itself")
        self.file.seek(offset)
        return self.file.read(size)
