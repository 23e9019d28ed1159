use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use serde_json::Value;
use tracing::subscriber::with_default;
use tracing_subscriber::{Layer, Registry, fmt, layer::SubscriberExt};

use super::JsonLines;

#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What `tell` tells, as our own format writes it or that of `tracing-subscriber`, each line without its time.
fn lines(is_own: bool, tell: fn()) -> Vec<String> {
    let kept = Kept::default();
    let into = kept.clone();
    let layer = fmt::layer().with_writer(move || into.clone()).json().flatten_event(true);
    let layer: Box<dyn Layer<Registry> + Send + Sync> =
        if is_own { layer.event_format(JsonLines::default()).boxed() } else { layer.boxed() };
    with_default(tracing_subscriber::registry().with(layer), tell);
    let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
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
fn a_line_is_that_of_tracing_subscriber_to_the_last_character() {
    let tell = || {
        let nothing: Option<usize> = None;
        let text = "a \"quoted\" \\ \u{e9}\u{1b}[31m\n\ttext";
        tracing::info!(
            text,
            none = nothing,
            some = Some(3_usize),
            yes = true,
            less = -1,
            share = 0.25,
            "told"
        );
        tracing::warn!(error = %io::Error::other("no \"way\""), list = ?[1, 2], whole = 2.0, nan = f64::NAN);
        tracing::error!("{}: 100 %", text);
        tracing::debug!(uid = String::from("a"), message = String::new());
        tracing::info!(target: "elsewhere", a = 1, "of a library");
        tracing::info_span!("outer", b = 2).in_scope(|| tracing::info!("within a span"));
    };
    let own = lines(true, tell);
    assert_eq!(own, lines(false, tell));
    assert_eq!(own.len(), 6);
    assert!(own[5].contains(r#""span":{"b":2,"name":"outer"}"#), "{}", own[5]);
}
