//! Splits the body of a watch call into its events while the body arrives: one line of JSON for each event.
//!
//! A watch of all namespaces receives the objects of every user. The head of a line contains the namespace of its object,
//! because the API server writes the fields of `ObjectMeta` in the order of their declaration: name, generated name,
//! namespace, uid, resource version, and later labels and annotations. The rest of a line that is not needed is dropped
//! while it arrives, so that large objects of other namespaces are neither buffered nor parsed.

use memchr::{memchr, memmem};

/// Length of the head of a line in bytes. The fields up to the resource version have less than 1 KiB: names have at most
/// 253 characters.
const HEAD_BYTES: usize = 2048;

/// Maximum length of a line that is buffered, in bytes. An object has at most 1.5 MiB, which JSON escapes can multiply by
/// six.
const MAX_LINE_BYTES: usize = 16 << 20;

/// Maximum capacity of the buffer between two lines, in bytes.
const MAX_IDLE_CAPACITY: usize = 64 << 10;

/// The events of one watch call.
pub(super) struct EventLines<F> {
    /// Whether the objects of this namespace are needed.
    needs: F,
    line: Vec<u8>,
    /// Whether the head of the line that has begun is known.
    is_head_known: bool,
    /// Whether the rest of the line that has begun is dropped.
    is_dropped: bool,
}

/// A line that has ended, or whose rest is dropped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum EventLine<'a> {
    /// The JSON of an event.
    Complete(&'a [u8]),
    /// The resource version of an event of a namespace that is not needed.
    Dropped(&'a str),
}

/// A line is longer than [`MAX_LINE_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("an event has more than {} MiB", MAX_LINE_BYTES >> 20)]
pub(super) struct LineTooLong;

// === impl EventLines ===

impl<F: Fn(&str) -> bool> EventLines<F> {
    /// Creates a splitter that drops the events of namespaces for which `needs` returns false.
    pub(super) fn new(needs: F) -> Self {
        Self { needs, line: Vec::new(), is_head_known: false, is_dropped: false }
    }

    /// Continues with the next piece of the body. `on_line` receives each line that ends in this piece.
    pub(super) fn push<E: From<LineTooLong>>(
        &mut self,
        piece: &[u8],
        mut on_line: impl FnMut(EventLine<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = piece;
        while !rest.is_empty() {
            let end = memchr(b'\n', rest);
            let (content, next) = rest.split_at(end.unwrap_or(rest.len()));
            rest = next.get(1..).unwrap_or_default();
            if !self.is_dropped {
                self.append(content, end.is_some(), &mut on_line)?;
            }
            if end.is_some() {
                if !self.is_dropped {
                    on_line(EventLine::Complete(&self.line))?;
                }
                self.line.clear();
                self.line.shrink_to(MAX_IDLE_CAPACITY);
                (self.is_head_known, self.is_dropped) = (false, false);
            }
        }
        Ok(())
    }

    /// Returns the line that has not ended; empty if the body ended with a line.
    pub(super) fn rest(&self) -> &[u8] {
        &self.line
    }

    fn append<E: From<LineTooLong>>(
        &mut self,
        content: &[u8],
        ends: bool,
        on_line: &mut impl FnMut(EventLine<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.line.len() + content.len() > MAX_LINE_BYTES {
            return Err(LineTooLong.into());
        }
        self.line.extend_from_slice(content);
        if self.is_head_known || (self.line.len() < HEAD_BYTES && !ends) {
            return Ok(());
        }
        self.is_head_known = true;
        let head = self.line.get(..HEAD_BYTES).unwrap_or(&self.line);
        if let Some((namespace, version)) = namespace_and_version(head)
            && !(self.needs)(namespace)
        {
            on_line(EventLine::Dropped(version))?;
            self.is_dropped = true;
            self.line.clear();
        }
        Ok(())
    }
}

/// Returns the namespace and the resource version in the head of a line; `None` for an event without a namespace.
fn namespace_and_version(head: &[u8]) -> Option<(&str, &str)> {
    let (namespace, rest) = field(head, b"\"namespace\":\"")?;
    let (version, _) = field(rest, b"\"resourceVersion\":\"")?;
    Some((namespace, version))
}

/// Returns the value of the first field with this name, and the text after it.
fn field<'a>(text: &'a [u8], name: &[u8]) -> Option<(&'a str, &'a [u8])> {
    let value = text.get(memmem::find(text, name)? + name.len()..)?;
    let (value, rest) = value.split_at_checked(memchr(b'"', value)?)?;
    Some((std::str::from_utf8(value).ok()?, rest))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Splits a body in pieces of this size. Dropped lines are shown as their version, complete ones as their beginning.
    fn split(body: &[u8], size: usize) -> Result<Vec<String>, LineTooLong> {
        let (mut lines, mut found) = (EventLines::new(|namespace: &str| namespace == "prod"), Vec::new());
        for piece in body.chunks(size) {
            lines.push(piece, |line| {
                found.push(match line {
                    EventLine::Complete(json) => {
                        let text: String = String::from_utf8_lossy(json).chars().take(20).collect();
                        format!("{text}, {} bytes", json.len())
                    }
                    EventLine::Dropped(version) => format!("version {version}"),
                });
                Ok::<_, LineTooLong>(())
            })?;
        }
        Ok(found)
    }

    fn event(namespace: &str, version: u64, annotation: &str) -> String {
        format!(
            r#"{{"type":"MODIFIED","object":{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{{"name":"etcd","namespace":"{namespace}","uid":"u","resourceVersion":"{version}","annotations":{{"namespace":"prod","a":"{annotation}"}}}}}}}}"#
        )
    }

    const BOOKMARK: &str = r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#;

    #[test]
    fn drops_the_rest_of_events_of_other_namespaces() {
        let large = "x".repeat(MAX_LINE_BYTES + 1);
        let (other, own) = (event("other", 7, &large), event("prod", 8, "b"));
        let body = format!("{other}\n{own}\n{BOOKMARK}\n{}\n", event("other", 9, "b"));
        let expected = [
            String::from("version 7"),
            format!(r#"{{"type":"MODIFIED",", {} bytes"#, own.len()),
            format!(r#"{{"type":"BOOKMARK",", {} bytes"#, BOOKMARK.len()),
            String::from("version 9"),
        ];
        assert_eq!(split(body.as_bytes(), 9000).unwrap(), expected);
    }

    #[test]
    fn limits_the_length_of_a_needed_event() {
        let body = format!("{}\n", event("prod", 7, &"x".repeat(MAX_LINE_BYTES)));
        let error = split(body.as_bytes(), 9000).unwrap_err();
        assert_eq!(error.to_string(), "an event has more than 16 MiB");
    }

    #[test]
    fn buffers_nothing_of_a_large_event_of_another_namespace() {
        let mut lines = EventLines::new(|_: &str| false);
        for piece in event("other", 7, &"x".repeat(1 << 20)).as_bytes().chunks(4096) {
            lines.push(piece, |_| Ok::<_, LineTooLong>(())).unwrap();
            assert!(lines.line.capacity() <= 3 * 4096, "{}", lines.line.capacity());
        }
    }

    proptest! {
        #[test]
        fn pieces_of_any_size_give_the_same_lines(size in 1_usize..5000, length in 0_usize..5000) {
            let annotation = "x".repeat(length);
            let (other, own) = (event("other", 7, &annotation), event("prod", 8, &annotation));
            let body = format!("{own}\n{other}\n{BOOKMARK}\n{other}\n{own}\n{own}");
            prop_assert_eq!(split(body.as_bytes(), size).unwrap(), split(body.as_bytes(), body.len()).unwrap());
        }
    }
}
