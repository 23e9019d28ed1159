"""Adapts a recording for its picture: shortens long waits and adds time to read each result.

pace.py <docs/demo.cast: changes the timestamps, and replaces repeated blanks, which some SVG viewers fold, by no-break
spaces.
"""

import json
import re
import sys

# Seconds: the longest wait, and the time that output stays before the next command or heading.
MAX_WAIT = 2.0
VERDICT_READING_TIME = 4.0
OUTPUT_READING_TIME = 1.0


def starts_section(line):
    """Whether this line starts a section: a command, or the empty line above a heading."""
    return line.startswith("\x1b[1m$ ") or not line.strip()


header, *events = sys.stdin
print(header, end="")
now = last = 0.0
before = ""
for event in events:
    time, kind, line = json.loads(event)
    wait = min(time - last, MAX_WAIT)
    if starts_section(line) and before.strip() and not before.startswith("\x1b[1m"):
        wait = max(wait, VERDICT_READING_TIME if "-> " in before else OUTPUT_READING_TIME)
    now, last, before = now + wait, time, line
    line = re.sub("  +", lambda blanks: "\u00a0" * len(blanks[0]), line)
    print(json.dumps([round(now, 3), kind, line], ensure_ascii=False))
