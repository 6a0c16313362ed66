"""Pickles that want more than to be read: calls, memory, time."""

import pickle
import random
import struct
from functools import partial

from support.fixtures_data import arrays, python, python2

#: What exploits call, and what stands near to what may be called.
NAMES = [
    *("os system", "posix system", "nt system", "subprocess Popen", "subprocess check_output"),
    *("builtins eval", "builtins exec", "__builtin__ eval", "builtins getattr", "builtins open"),
    *("builtins __import__", "builtins compile", "builtins bytearray", "builtins breakpoint"),
    *("importlib import_module", "runpy run_path", "pty spawn", "code interact", "pdb run"),
    *("torch load", "torch.hub load", "torch.utils.collect_env run", "numpy load"),
    *("numpy.core.multiarray scalar", "numpy._core.multiarray fromfile", "numpy memmap"),
    *("numpy ndarray.__class__", "numpy dtype.__init__", "numpy.f2py.crackfortran param_eval"),
    *("copyreg _reconstructor", "copyreg add_extension", "functools partial", "operator call"),
    *("_codecs decode", "_codecs register", "codecs open", "pickle loads", "_pickle loads"),
    *("types FunctionType", "ctypes CDLL", "aesam.lab.data.pickles _Machine", "numpy  dtype"),
]


def text(value):
    return b"X" + struct.pack("<I", len(value)) + value.encode()


def calls(canary):
    """Each name asked for in each way, and called with a command that leaves a canary."""
    argument = text(f"touch {canary}")
    for name in NAMES:
        module, _, attribute = name.partition(" ")
        asked = f"{module}\n{attribute}\n".encode()
        yield f"global {name}", b"\x80\x02c" + asked + argument + b"\x85R."
        yield (
            f"stack {name}",
            b"\x80\x04" + text(module) + text(attribute) + b"\x93" + argument + b"\x85R.",
        )
        yield f"inst {name}", b"(" + argument + b"i" + asked + b"."
        yield f"obj {name}", b"(c" + asked + argument + b"o."
        yield f"newobj {name}", b"\x80\x02c" + asked + argument + b"\x85\x81."
        yield f"newobj ex {name}", b"\x80\x04c" + asked + argument + b"\x85}\x92."


KNOWN = ["numpy dtype", "numpy ndarray", "_codecs encode", "numpy.core.multiarray _reconstruct"]
KNOWN += ["numpy.core.numeric _frombuffer"]


def misuses():
    """What may be called, with what it should not be given."""
    odd = {
        "nothing": b")",
        "number": b"K\x05\x85",
        "huge number": b"J\xff\xff\xff\x7f\x85",
        "four": b"(NNNNt",
        "names": b"(cnumpy\nndarray\ncnumpy\ndtype\nt",
        "no tuple": b"]",
        "encoding": b"(" + text("x") + text("idna") + b"t",
        "state": b"(" + text("__class__") + b"Nt",
    }
    for name in KNOWN:
        asked = b"c" + name.replace(" ", "\n").encode() + b"\n"
        for label, given in odd.items():
            yield f"{name} of {label}", b"\x80\x02" + asked + given + b"R."
            yield f"{name} built by {label}", b"\x80\x02" + asked + given + b"b."
            yield f"{name} new of {label}", b"\x80\x02" + asked + given + b"\x81."


def instructions():
    """Every byte as an instruction: alone, on a full stack, and with a long argument."""
    for code in range(256):
        one = bytes([code])
        yield f"instruction {code}", b"\x80\x04" + one + b"."
        yield f"instruction {code} on values", b"\x80\x04}(NK\x01]q\x00)" + one + b"\x00\n\n."
        yield f"instruction {code} of all", b"\x80\x04N" + one + b"\xff\xff\xff\x7f" * 3 + b"\n."


def sizes():
    """Lengths and places that are not there."""
    for code, kind in (
        *((b"B", "<I"), (b"T", "<i"), (b"X", "<I"), (b"\x8b", "<i"), (b"r", "<I"), (b"j", "<I")),
        *((b"\x8e", "<Q"), (b"\x8d", "<Q"), (b"\x96", "<Q"), (b"\x95", "<Q")),
    ):
        signed = kind.islower() and kind.endswith("i")
        most = 2 ** (8 * struct.calcsize(kind) - signed) - 1
        for size in {most, most // 2, most // 2 + 1, 2**31 - 1, 2**30}:
            for end in (b".", b"x" * 80 + b"."):
                yield (
                    f"{code!r} {size} {len(end)}",
                    b"\x80\x04N" + code + struct.pack(kind, size) + end,
                )
    yield "put far away", b"Np2147483647\n."
    yield "put below", b"Np-5\n."
    yield "a number of many digits", b"L" + b"9" * 100_000 + b"L\n."
    yield "a number of many bytes", b"\x8b" + struct.pack("<i", 10**6) + b"\x7f" * 10**6 + b"."


def bombs():
    """Small files that stand for much, in depth or by repetition."""
    lists = b"]q\x00" + b"".join(b"](" + b"h\x00" * 10 + b"eq\x00" for _ in range(40))
    tuples = b")q\x00" + b"".join(b"(" + b"h\x00" * 10 + b"tq\x00" for _ in range(40))
    key, data = text("labels"), text("data")
    yield "labels of labels", b"\x80\x02}" + key + lists + b"s."
    yield "tuples of tuples as a key", b"\x80\x02}" + tuples + b"Ns."
    yield (
        "tuples of tuples as an encoding",
        b"\x80\x02c_codecs\nencode\n" + text("x") + tuples + b"\x86R.",
    )
    yield "a list in itself", b"\x80\x02}" + key + b"]q\x00h\x00as."
    yield "a list within a list, often", b"]" * 200_000 + b"a" * 199_999 + b"."
    yield "marks", b"(" * 500_000 + b"."
    yield "tuples within tuples", b")" + b"\x85" * 500_000 + b"."
    kind = b"cnumpy\ndtype\n" + text("u1") + b"\x85R"
    for label, shape, raw in (
        ("a number for bytes", b"K\x01K\x01\x86", b"J\xff\xff\xff\x7f"),
        ("a shape beyond all", b"\x8a\x08" + b"\xff" * 7 + b"\x3fK\x02\x86", text("ab")),
        ("a shape below nothing", b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", text("ab")),
        ("a shape of nothing", b"K\x00J\xff\xff\xff\x7f\x86", text("")),
        ("a deep shape", lists, text("ab")),
    ):
        empty = b"cnumpy.core.multiarray\n_reconstruct\n)R"
        array = empty + b"(K\x01" + shape + kind + b"\x89" + raw + b"tb"
        yield f"an array of {label}", b"\x80\x02}" + data + array + b"s."
        buffer = b"cnumpy.core.numeric\n_frombuffer\n(" + raw + kind + shape + text("C") + b"tR"
        yield f"a buffer of {label}", b"\x80\x02}" + data + buffer + b"s."


def wholes():
    """The official form, as several Pythons write it."""
    drawn = arrays(2, 10, 0)
    yield "python 2", python2(*drawn, "labels")
    for protocol in range(6):
        encode = partial(python, key="labels", protocol=protocol)
        yield f"protocol {protocol}", encode(*drawn)
    yield "something else", pickle.dumps({"data": random.Random, "labels": print})


def damaged(count, seed=0):
    """Whole ones, cut somewhere, or with some bits flipped where the instructions are."""
    source = random.Random(seed)
    for label, raw in wholes():
        for i in range(count):
            at = source.randrange(len(raw))
            yield f"{label} cut at {at}, {i}", raw[:at]
            changed = bytearray(raw)
            for _ in range(source.randrange(1, 4)):
                ends = source.choice((200, len(raw)))
                changed[source.randrange(min(ends, len(raw)))] ^= 1 << source.randrange(8)
            yield f"{label} flipped {i}", bytes(changed)
