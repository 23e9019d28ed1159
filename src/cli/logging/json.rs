//! Log lines in JSON as `tracing-subscriber` writes them, and cheaper: every review has one.

use std::{fmt, time::SystemTime};

use serde::{Serialize, Serializer, ser::SerializeMap};
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

/// Longer than most lines.
const COMMON_LENGTH: usize = 512;

/// Where this program's own lines come from.
const OWN_TARGET: &str = "etcd_guard";

/// Writes a line of this program's own in one piece, where `tracing-subscriber` hands over each quotation mark by itself.
pub(super) struct JsonLines {
    /// What libraries tell, and what is told within their spans, is seldom and has more to it.
    others: Format<Json>,
}

/// Writes an event's fields as members of a map.
struct Fields<M: SerializeMap> {
    map: M,
    written: Result<(), M::Error>,
}

// === impl JsonLines ===

impl Default for JsonLines {
    fn default() -> Self {
        Self { others: Format::default().json().flatten_event(true) }
    }
}

impl<S, N> FormatEvent<S, N> for JsonLines
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
            return self.others.format_event(context, writer, event);
        }
        let line = line(event).map_err(|_| fmt::Error)?;
        writer.write_str(std::str::from_utf8(&line).map_err(|_| fmt::Error)?)
    }
}

fn line(event: &Event<'_>) -> serde_json::Result<Vec<u8>> {
    let metadata = event.metadata();
    let mut line = Vec::with_capacity(COMMON_LENGTH);
    let mut serializer = serde_json::Serializer::new(&mut line);
    let mut map = serializer.serialize_map(None)?;
    map.serialize_entry(
        "timestamp",
        &format_args!("{}", humantime::format_rfc3339_micros(SystemTime::now())),
    )?;
    map.serialize_entry("level", metadata.level().as_str())?;
    let mut fields = Fields { map, written: Ok(()) };
    event.record(&mut fields);
    let Fields { mut map, written } = fields;
    written?;
    map.serialize_entry("target", metadata.target())?;
    map.end()?;
    line.push(b'\n');
    Ok(line)
}

// === impl Fields ===

impl<M: SerializeMap> Fields<M> {
    fn member(&mut self, field: &Field, value: &(impl Serialize + ?Sized)) {
        if self.written.is_ok() {
            self.written = self.map.serialize_entry(field.name(), value);
        }
    }
}

impl<M: SerializeMap> Visit for Fields<M> {
    fn record_bool(&mut self, field: &Field, value: bool) {
        self.member(field, &value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.member(field, &value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.member(field, &value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.member(field, &value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.member(field, value);
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.member(field, &format_args!("{value:?}"));
    }
}

#[cfg(test)]
mod tests;
