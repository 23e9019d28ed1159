//! Input files of commands.

use std::{io::Read, path::Path};

use anyhow::Context;

/// Returns the text of a file, or of standard input for `-`.
pub(super) fn read(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| file.display().to_string())
}
