"""The library's own part of a state dict, read and written as the docs say it is laid out."""

import copy
import json
from typing import Any

MEMORIES = ("ascent", "samples", "between", "combine")


def ours(saved: dict[str, Any]) -> dict[str, Any]:
    """The text of the groups, with the formed tensors of each part by their parameter's number."""
    sections = json.loads(saved["param_groups"][0]["aesam"])
    for part in MEMORIES:
        sections[part]["tensors"] = {
            i: entry[f"aesam.{part}"]
            for i, entry in saved["state"].items()
            if entry.get(f"aesam.{part}.formed")
        }
    return sections


def damaged(saved: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with something else at ``path``, nothing for KeyError; "text" leads into the text."""
    other = copy.deepcopy(saved)
    if path[0] == "text":
        for group in other["param_groups"]:
            sections = json.loads(group["aesam"])
            _put(sections, path[1:], value)
            group["aesam"] = json.dumps(sections)
    else:
        _put(other, path, value)
    return other


def _put(inner: Any, path: tuple[Any, ...], value: Any) -> None:
    *parents, last = path
    for key in parents:
        inner = inner[key]
    if value is KeyError:
        del inner[last]
    else:
        inner[last] = value
