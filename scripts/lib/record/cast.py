"""Converts a log of script(1) to asciicast v2 (https://docs.asciinema.org/manual/asciicast/v2/).

cast.py OUTPUT TIMING COLUMNS ROWS FIRST: starts at the line that begins with FIRST. Timestamps are those of the run.
"""

import json
import sys


def logged(output, timing):
    """Yields the output of the terminal: seconds since the start, bytes."""
    with open(output, "rb") as file:
        data = file.read()
    # The first line is not from the command: "Script started on ...".
    data = data[data.index(b"\n") + 1 :]
    now, at = 0.0, 0
    with open(timing, encoding="ascii") as file:
        for line in file:
            delay, size = line.split()
            now += float(delay)
            yield now, data[at : at + int(size)]
            at += int(size)


def lines(events):
    """Yields lines, each with the time of its last byte."""
    rest = b""
    for now, data in events:
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield now, line.decode() + "\n"


def main(output, timing, columns, rows, first):
    begin = None
    for now, line in lines(logged(output, timing)):
        if begin is None and line.removeprefix("\x1b[1m").startswith(first):
            begin = now
            header = {"version": 2, "width": int(columns), "height": int(rows), "title": "scripts/demo"}
            print(json.dumps(header))
        if begin is not None:
            print(json.dumps([round(now - begin, 3), "o", line], ensure_ascii=False))
    if begin is None:
        sys.exit(f"no line begins with {first!r}")


main(*sys.argv[1:])
