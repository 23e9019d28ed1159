//! The output of plans.

use std::io::{self, Write};

use crate::{
    escape::{MAX_TEXT_CHARS, to_bounded_line},
    terminal::{EMPHASIS, paint},
};

/// Writes a plan, with each line escaped. The first line is the title.
pub(crate) fn write_plan(out: &mut impl Write, text: &str) -> io::Result<()> {
    for (index, line) in text.lines().enumerate() {
        let line = to_bounded_line(line, MAX_TEXT_CHARS);
        if index == 0 {
            writeln!(out, "{}", paint(EMPHASIS, &line))?;
        } else {
            writeln!(out, "{line}")?;
        }
    }
    out.flush()
}

/// Returns the plan with this text as a line.
#[cfg(test)]
pub(crate) fn texts(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_plan(&mut out, &text.replace('\n', " ")).unwrap();
    out
}
