"""Gives a recording the pace of a reader, for its picture: no long waits, and time to read each answer.

pace.py <docs/demo.cast: the times change, and blanks of tables, which some that show SVG fold, become ones that stay.
"""

import json
import re
import sys

# Seconds: the longest wait for anything, and how long an answer stays before the next command or heading.
LONGEST_WAIT = 2.0
TO_READ = {"the verdict": 4.0, "anything else": 1.0}


def is_new(line):
    """Whether something new begins with this line: a command, or the empty line above a heading."""
    return line.startswith("\x1b[1m$ ") or not line.strip()


header, *events = sys.stdin
print(header, end="")
now = last = 0.0
before = ""
for event in events:
    time, kind, line = json.loads(event)
    wait = min(time - last, LONGEST_WAIT)
    if is_new(line) and before.strip() and not before.startswith("\x1b[1m"):
        wait = max(wait, TO_READ["the verdict" if "-> " in before else "anything else"])
    now, last, before = now + wait, time, line
    line = re.sub("  +", lambda blanks: "\u00a0" * len(blanks[0]), line)
    print(json.dumps([round(now, 3), kind, line], ensure_ascii=False))
