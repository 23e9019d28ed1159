//! Log lines in the JSON format of `tracing-subscriber`, at a lower cost, because every review has one.

use std::{fmt, io::Write, time::SystemTime};

use serde::Serialize;
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Json, Writer},
    },
    registry::LookupSpan,
};

use crate::{
    escape::{MAX_TEXT_CHARS, to_bounded_line},
    json::write_text,
};

/// Initial capacity of a line in bytes: more than most lines need.
const INITIAL_CAPACITY: usize = 512;

/// Prefix of the targets of this crate's events.
const OWN_TARGET: &str = "etcd_guard";

/// Writes each event of this crate with one call of the writer, whereas `tracing-subscriber` passes each token
/// separately.
pub(super) struct JsonFormat {
    /// Formats events of libraries and events within spans, which are rare and more complex.
    fallback: Format<Json>,
}

/// Writes an event's fields as members of a map.
struct Fields {
    line: Vec<u8>,
    /// Absent after a failed write, which is not expected.
    written: Option<()>,
}

// === impl JsonFormat ===

impl Default for JsonFormat {
    fn default() -> Self {
        Self { fallback: Format::default().json().flatten_event(true) }
    }
}

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        if !event.metadata().target().starts_with(OWN_TARGET) || context.lookup_current().is_some() {
            return self.fallback.format_event(context, writer, event);
        }
        let line = line(event).ok_or(fmt::Error)?;
        writer.write_str(std::str::from_utf8(&line).map_err(|_| fmt::Error)?)
    }
}

fn line(event: &Event<'_>) -> Option<Vec<u8>> {
    let metadata = event.metadata();
    let mut fields = Fields { line: Vec::with_capacity(INITIAL_CAPACITY), written: Some(()) };
    fields.line.extend_from_slice(br#"{"timestamp":""#);
    write!(fields.line, "{}", humantime::format_rfc3339_micros(SystemTime::now())).ok()?;
    fields.line.push(b'"');
    fields.text("level", metadata.level().as_str());
    event.record(&mut fields);
    fields.text("target", metadata.target());
    fields.written?;
    fields.line.extend_from_slice(b"}\n");
    Some(fields.line)
}

// === impl Fields ===

impl Fields {
    fn member(&mut self, name: &str, write: impl FnOnce(&mut Vec<u8>) -> Option<()>) {
        if self.written.is_some() {
            self.line.push(b',');
            self.written = write_text(name, &mut self.line);
            self.line.push(b':');
            self.written = self.written.and_then(|()| write(&mut self.line));
        }
    }

    fn text(&mut self, name: &str, text: &str) {
        if text.len() <= MAX_TEXT_CHARS {
            self.member(name, |line| write_text(text, line));
        } else {
            self.member(name, |line| write_text(&to_bounded_line(text, MAX_TEXT_CHARS), line));
        }
    }

    fn value(&mut self, field: &Field, value: &impl Serialize) {
        self.member(field.name(), |line| serde_json::to_writer(line, value).ok());
    }
}

impl Visit for Fields {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.value(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.value(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.value(field, &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.value(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.text(field.name(), value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.text(field.name(), &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests;
