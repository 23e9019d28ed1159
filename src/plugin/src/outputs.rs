//! The log lines and the terminal output of the program, for the test of all outputs.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use tracing::subscriber::with_default;
use tracing_subscriber::layer::SubscriberExt;

use crate::{
    cli::{
        check::{report::CheckReport, review::Placement},
        inspect::report::{print, print_roles},
        status,
    },
    conformance::Report,
    doctor,
    guard_client::{read_answer, webhook_coverage::WebhookCoverage},
    maintenance,
};
use etcd_guard_api::Preview;
use etcd_guard_cli::{
    logging::{LogFormat, TestBuffer, lines},
    printing::{Output, write_error},
    terminal::{EMPHASIS, FAILURE, SUCCESS, WARNING, waiting::write_notice},
};
use etcd_guard_core::inspect::Inspection;

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
pub fn log_of(is_json: bool, log: impl FnOnce()) -> String {
    let format = if is_json { LogFormat::Json } else { LogFormat::Text };
    let buffer = TestBuffer::default();
    let writer = buffer.clone();
    let layer = lines(format, move || writer.clone());
    with_default(tracing_subscriber::registry().with(layer), log);
    buffer.text()
}

/// The formats of all commands.
const OUTPUTS: [Output; 5] = [Output::Table, Output::Wide, Output::Name, Output::Json, Output::Yaml];

/// Returns what `status` prints in each format for this response of a guard.
pub fn status_texts(body: &[u8]) -> Vec<String> {
    let survey = read_answer(body).unwrap();
    OUTPUTS.map(|output| written(|out| status::write(&survey, output, out).unwrap())).into()
}

/// Returns what `version` prints in each format for replicas with `text` as name and release.
pub fn version_texts(text: &str) -> Vec<String> {
    let releases = crate::cli::doctor::version::Releases::with_texts(text);
    OUTPUTS.map(|output| written(|out| releases.write(output, out).unwrap())).into()
}

/// Returns the line of an error with this text, and the notice of a call to a server with this name.
pub fn error_and_notice(text: &str) -> [String; 2] {
    let error = anyhow::anyhow!(text.to_owned()).context("failed to read a pod");
    [written(|out| write_error(&error, out).unwrap()), written(|out| write_notice(text, out).unwrap())]
}

/// Returns what `check` prints as a table, JSON and YAML for this response of a guard, and for a user, a cause and the place
/// of a pod with `text`.
pub fn check_texts(body: &[u8], text: &str) -> [String; 3] {
    let preview: Preview = read_answer(body).unwrap();
    let coverage = WebhookCoverage::Unknown(text.to_owned());
    let placement = Placement { address: Some(text.to_owned()), node: Some(text.to_owned()) };
    let report = CheckReport::new(&format!("delete pod {text}"), text, &coverage, &preview);
    let report = report.with_placement(&placement);
    let table = written(|out| {
        report.write(out).unwrap();
        report.write_warnings(out).unwrap();
    });
    let document =
        |output: Output| written(|out| assert!(output.write_document(&report, out).unwrap(), "a document"));
    [table, document(Output::Json), document(Output::Yaml)]
}

/// Returns the report of `conformance` with `text` as a response of the API server.
pub fn conformance_text(text: &str) -> String {
    written(|out| Report::with_texts(text).write_text(out).unwrap())
}

/// Returns what the maintenance commands print for a message and a line of a plan with `text`.
pub fn maintenance_text(text: &str) -> String {
    written(|out| out.extend(maintenance::reporter::texts(text)))
}

/// Returns the report of `inspect` in each of its forms.
pub fn inspect_texts(inspection: &Inspection) -> Vec<String> {
    let report = std::slice::from_ref(inspection);
    let texts = OUTPUTS.map(|output| written(|out| print(report, output, out).unwrap()));
    let roles = written(|out| print_roles(report, out).unwrap());
    texts.into_iter().chain([roles]).collect()
}

/// Returns the page and the anchor of each section that a line of `doctor` names.
pub fn doctor_sections() -> Vec<(&'static str, &'static str)> {
    doctor::sections::all()
}

/// Returns the table of `doctor` with `text` in each message and remedy.
pub fn doctor_text(text: &str) -> String {
    written(|out| doctor::Report::with_texts(text).write_table(out).unwrap())
}
