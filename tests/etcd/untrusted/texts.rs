//! Texts of a member that control terminals, start lines and contain shell syntax.

use std::net::SocketAddr;

use serde_json::Value;

use super::fan_out::pod;
use crate::{cluster::START_TIMEOUT, guarded_cluster::GuardedPods};
use test_support::{
    etcd::fake_member::{FakeListed, FakeMember, FakeReplies, FakeTexts},
    wait::wait_for,
};

/// Erases the screen, reverses the direction of text, starts a line and runs a command.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{202e}\u{2066}\n\u{2028}'; reboot #";

/// Returns the denial, the status and the preview of a pod whose member answers with these texts. Two further voters have
/// `name` in their names and no pod.
async fn texts(name: &str, texts: FakeTexts, reason: &str) -> [String; 3] {
    let listed = |n: u64| FakeListed {
        id: 1 + n,
        name: if n == 0 { String::from("etcd-0") } else { format!("{name}{n}") },
        peer_urls: vec![format!("http://etcd-{n}.example:2380")],
        client_urls: vec![format!("http://etcd-{n}.example:2379")],
    };
    let members = (0..3).map(listed).collect();
    let replies = FakeReplies { cluster_id: 7, member_id: 1, leader: 1, term: 3, members };
    let member = FakeMember::start_with_texts(SocketAddr::from(([127, 0, 0, 1], 0)), replies, texts).await;
    let pod = pod("etcd-0", member.address());
    let guarded = GuardedPods::start(std::slice::from_ref(&pod)).await;
    // On a busy machine the member may answer too late.
    let message = wait_for("the member answers in time", START_TIMEOUT, async || {
        let (found, message) = guarded.dry_run(&pod).await;
        (found == reason).then_some(message)
    })
    .await;
    [message, guarded.status().await, guarded.check(&pod).await]
}

/// Fails for control characters and for formatting characters of bidirectional text, also in the strings of JSON.
fn assert_harmless(text: &str) {
    fn strings(value: &Value, check: &impl Fn(&str)) {
        match value {
            Value::String(text) => check(text),
            Value::Array(items) => items.iter().for_each(|item| strings(item, check)),
            Value::Object(members) => members.values().for_each(|member| strings(member, check)),
            _ => {}
        }
    }
    let check = |text: &str| {
        // Denials have several lines. A line that a hostile text began would start with its next letter.
        let hidden = |letter: char| letter.is_control() || HOSTILE.contains(letter) && !letter.is_ascii();
        let is_harmless = |line: &str| !line.contains(hidden) && !line.starts_with(r"\u{2028}");
        assert!(text.split('\n').all(is_harmless), "{text:?}");
    };
    check(text);
    if let Ok(value) = serde_json::from_str(text) {
        strings(&value, &check);
    }
}

/// Names of voters, and the version.
#[tokio::test]
async fn names_and_versions_of_members_are_escaped_and_cut() {
    let version = format!("3.6.16{}", HOSTILE.repeat(100));
    let long = HOSTILE.repeat(1000);
    let shown = texts(&long, FakeTexts { version, refusal: None }, "QuorumAtRisk").await;
    for text in &shown {
        assert_harmless(text);
        assert!(text.len() < 8000, "{} bytes: {text}", text.len());
        assert!(text.contains("reboot"), "{text}");
    }
    let [_, status, _] = shown;
    let status: Value = serde_json::from_str(&status).unwrap();
    let version = status["clusters"][0]["members"][0]["version"].as_str().unwrap();
    assert!(version.starts_with("3.6.16\\u{1b}[2J") && version.chars().count() <= 64, "{version}");
}

/// The message of a gRPC status.
#[tokio::test]
async fn error_messages_of_members_are_escaped_and_cut() {
    let refusal = Some(HOSTILE.repeat(50));
    let shown = texts("etcd-", FakeTexts { refusal, ..FakeTexts::default() }, "ElectionInProgress").await;
    for text in &shown {
        assert_harmless(text);
        assert!(text.len() < 4000, "{} bytes: {text}", text.len());
        assert!(text.contains("reboot"), "{text}");
    }
}
