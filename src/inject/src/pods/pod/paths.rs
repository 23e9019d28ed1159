//! Paths in containers.

use std::borrow::Cow;

/// Removes duplicate and trailing slashes, `.` and `..` from a path.
pub(crate) fn normalized(path: &str) -> Cow<'_, str> {
    // Compared by bytes: most paths are short and already normalized.
    let is_name = |segment: &[u8]| !matches!(segment, b"" | b"." | b"..");
    if path.strip_prefix('/').is_some_and(|path| path.as_bytes().split(|byte| *byte == b'/').all(is_name)) {
        return Cow::Borrowed(path);
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

/// Whether the normalized path `inner` is below the normalized path `outer`.
pub(crate) fn is_below(inner: &str, outer: &str) -> bool {
    outer == "/" && inner != "/" || inner.strip_prefix(outer).is_some_and(|rest| rest.starts_with('/'))
}
