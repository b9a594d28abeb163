"""Programs for XLA that consist of one call to our handler, as StableHLO text. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

__all__ = ["TARGET", "TYPES", "Array", "program"]

TARGET = "khorovod"
"""What the handler is registered as."""
TYPES = {
    "uint8": "ui8",
    "int8": "i8",
    "uint16": "ui16",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "bool": "i1",
}
"""The types that travel, and what StableHLO calls them."""
Array = tuple[str, Sequence[int]]
"""Type and shape."""


def program(
    operation: str,
    attributes: Mapping[str, int | float | str],
    arguments: Sequence[Array],
    results: Sequence[Array],
    in_place: Sequence[tuple[int, int]] = (),
) -> str:
    """The program that hands ``arguments`` to ``operation`` and returns its results.

    ``in_place`` are numbers of results, and of the arguments in whose memory they are.
    """
    given, taken = [_type(array) for array in arguments], [_type(array) for array in results]
    names = [f"%arg{number}" for number in range(len(given))]
    parameters = ", ".join(f"{name}: {kind}" for name, kind in zip(names, given, strict=True))
    settings = {"operation": operation, **attributes}
    values = ", ".join(f"{name} = {_value(settings[name])}" for name in sorted(settings))
    options = ["api_version = 4 : i32", "has_side_effect = true", f"backend_config = {{{values}}}"]
    if in_place:
        options.append(f"output_operand_aliases = [{_aliases(in_place, len(taken))}]")
    count = len(taken)
    outcome, returned = ("%0", "%0") if count == 1 else (f"%0:{count}", _numbered("%0#", count))
    return (
        "module @khorovod {\n"
        f"  func.func public @main({parameters}) -> ({', '.join(taken)}) {{\n"
        f"    {outcome} = stablehlo.custom_call @{TARGET}({', '.join(names)}) {{{', '.join(options)}}}"
        f" : ({', '.join(given)}) -> {taken[0] if count == 1 else '(' + ', '.join(taken) + ')'}\n"
        f"    return {returned} : {', '.join(taken)}\n"
        "  }\n"
        "}\n"
    )


def _type(array: Array) -> str:
    kind, shape = array
    return f"tensor<{''.join(f'{size}x' for size in shape)}{TYPES[kind]}>"


def _numbered(text: str, count: int) -> str:
    return ", ".join(f"{text}{number}" for number in range(count))


def _aliases(in_place: Sequence[tuple[int, int]], results: int) -> str:
    return ", ".join(
        f"#stablehlo.output_operand_alias<output_tuple_indices = [{result if results > 1 else ''}], "
        f"operand_index = {argument}, operand_tuple_indices = []>"
        for result, argument in in_place
    )


def _value(value: float | str) -> str:
    """Numbers of 64 bits each, to the last of them, and text with all else than letters escaped."""
    if isinstance(value, str):
        plain = "".join(
            chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:02X}"
            for byte in value.encode("utf-8", "surrogateescape")
        )
        return f'"{plain}"'
    if isinstance(value, float):
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X} : f64"
    return f"{value} : i64"
