//! The log lines and the terminal output of the program, for the test of all outputs.

use tracing::subscriber::with_default;
use tracing_subscriber::layer::SubscriberExt;

use super::{
    check::report::CheckReport,
    inspect::report::{Format, print},
    logging::{LogFormat, TestBuffer, lines},
    status::write_text,
};
use crate::{
    conformance::Report,
    doctor,
    escape::escape_json,
    guard::Inspection,
    guard_client::{read_answer, webhook_coverage::WebhookCoverage},
    server::Preview,
    terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING},
};

/// Returns the text that a command writes, without the styles of this program.
fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut out = Vec::new();
    write(&mut out);
    let mut text = String::from_utf8(out).unwrap();
    // The other styles begin with the sequence of `EMPHASIS`.
    for style in [FAILURE, SUCCESS, WARNING, EMPHASIS] {
        text = text.replace(&style.render().to_string(), "");
        text = text.replace(&style.render_reset().to_string(), "");
    }
    text
}

/// Returns the log that `log` writes in one of the two formats.
pub(crate) fn log_of(is_json: bool, log: impl FnOnce()) -> String {
    let format = if is_json { LogFormat::Json } else { LogFormat::Text };
    let buffer = TestBuffer::default();
    let writer = buffer.clone();
    let layer = lines(format, move || writer.clone());
    with_default(tracing_subscriber::registry().with(layer), log);
    buffer.text()
}

/// Returns what `status` prints for this response of a guard.
pub(crate) fn status_text(body: &[u8]) -> String {
    written(|out| write_text(&read_answer(body).unwrap(), out).unwrap())
}

/// Returns what `check` prints as text and as JSON for this response of a guard, and for a user and a cause with `text`.
pub(crate) fn check_texts(body: &[u8], text: &str) -> [String; 2] {
    let preview: Preview = read_answer(body).unwrap();
    let coverage = WebhookCoverage::Unknown(text.to_owned());
    let report = CheckReport::new(&format!("delete pod {text}"), text, &coverage, &preview);
    let table = written(|out| {
        report.write(out).unwrap();
        report.write_warnings(out).unwrap();
    });
    [table, escape_json(&serde_json::to_string_pretty(&report).unwrap()).into_owned()]
}

/// Returns the report of `conformance` with `text` as a response of the API server.
pub(crate) fn conformance_text(text: &str) -> String {
    written(|out| Report::with_texts(text).write_text(out).unwrap())
}

/// Returns the report of `inspect` in each of its forms.
pub(crate) fn inspect_texts(inspection: &Inspection) -> Vec<String> {
    let report = std::slice::from_ref(inspection);
    let formats = [Format::Table, Format::Json, Format::Yaml, Format::Role];
    formats.map(|format| written(|out| print(report, format, out).unwrap())).into()
}

/// Returns the table of `doctor` with `text` in each message and remedy.
pub(crate) fn doctor_text(text: &str) -> String {
    written(|out| doctor::Report::with_texts(text).write_table(out).unwrap())
}
