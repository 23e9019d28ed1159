use serde_json::Value;
use tracing::subscriber::with_default;
use tracing_subscriber::{Layer, Registry, fmt, layer::SubscriberExt};

use super::JsonFormat;
use crate::cli::logging::TestBuffer;

/// Returns the lines that `log` writes, in the format of this crate or of `tracing-subscriber`, without timestamps.
fn lines(own_format: bool, log: fn()) -> Vec<String> {
    let buffer = TestBuffer::default();
    let writer = buffer.clone();
    let layer = fmt::layer().with_writer(move || writer.clone()).json().flatten_event(true);
    let layer: Box<dyn Layer<Registry> + Send + Sync> =
        if own_format { layer.event_format(JsonFormat::default()).boxed() } else { layer.boxed() };
    with_default(tracing_subscriber::registry().with(layer), log);
    let text = buffer.text();
    text.lines().map(without_time).collect()
}

fn without_time(line: &str) -> String {
    let read: Value = serde_json::from_str(line).unwrap();
    let time = read["timestamp"].as_str().unwrap();
    // 2026-11-22T14:20:35.511627Z
    assert_eq!(
        (time.len(), time.find('T'), time.find('.'), time.find('Z')),
        (27, Some(10), Some(19), Some(26))
    );
    line.replacen(time, "", 1)
}

#[test]
fn writes_same_lines_as_tracing_subscriber() {
    let log = || {
        let nothing: Option<usize> = None;
        let text = "a \"quoted\" \\ \u{e9}\u{1b}[31m\n\ttext";
        tracing::info!(
            text,
            absent = nothing,
            present = Some(3_usize),
            flag = true,
            negative = -1,
            fraction = 0.25,
            "message"
        );
        tracing::warn!(error = %std::io::Error::other("a \"quoted\" error"), list = ?[1, 2], whole = 2.0, nan = f64::NAN);
        tracing::error!("{}: 100 %", text);
        tracing::debug!(uid = String::from("a"), message = String::new());
        tracing::info!(target: "library", a = 1, "of a library");
        tracing::info_span!("outer", b = 2).in_scope(|| tracing::info!("within a span"));
    };
    let own = lines(true, log);
    assert_eq!(own, lines(false, log));
    assert_eq!(own.len(), 6);
    assert!(own[5].contains(r#""span":{"b":2,"name":"outer"}"#), "{}", own[5]);
}
