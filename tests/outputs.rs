//! One property for every output of the program: a text that another system wrote does not control a terminal, starts no
//! line, runs no command, and is bounded.
//!
//! Each [`Place`] receives the text unescaped, as if it were the only place that escapes it. Structs are written out, so that
//! a new field does not compile without a value here. A new output needs a line in [`places!`].

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    reason = "values for tests: a failure is a panic"
)]

use etcd_client::Error;
use proptest::prelude::*;
use serde_json::Value;

use etcd_guard_api::{
    BackupStatus, ClusterStatus, MemberStatus, RecognitionGap, ReservationStatus, Role, Survey,
};
use etcd_guard_core::{
    documentation::Manual,
    escape::{MAX_TEXT_CHARS, escape_json, to_shell_word},
    etcd::member::{MemberId, displayed_name, displayed_version},
    opt_in_label::OptInLabel,
    policy::PolicySetting,
    reason::Reason,
    verdict::Verdict,
};
use etcd_guard_etcd::member_error;
use etcd_guard_guard::outputs::{
    cluster_name, commands, inspection, policy_texts, record_metrics, request, request_of_user, verdicts,
};
use etcd_guard_kubernetes::{EventRecord, error_message, fake::status_failure};
use etcd_guard_plugin::outputs::{
    check_texts, conformance_text, doctor_text, error_and_notice, inspect_texts, log_of, maintenance_text,
    status_texts, version_texts,
};
use etcd_guard_server::{admin_outputs, webhook_outputs};

/// Declares each place once: its description and its texts.
macro_rules! places {
    ($($(#[$doc:meta])* $name:ident($text:ident) => $texts:expr;)*) => {
        /// A place where a foreign text enters the program, becomes part of a verdict, or leaves the program.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum Place {
            $($(#[$doc])* $name,)*
        }

        impl Place {
            const ALL: &[Self] = &[$(Self::$name,)*];

            /// Returns the lines of this place for a foreign text.
            fn texts(self, foreign: &str) -> Vec<String> {
                match self { $(Self::$name => (|$text: &str| -> Vec<String> { $texts })(foreign),)* }
            }
        }
    };
}

places! {
    /// The name of a member in a member list and in the flags of a pod.
    MemberName(text) => vec![displayed_name(text)];
    /// The version in a member's status.
    MemberVersion(text) => vec![displayed_version(text)];
    /// The message of a gRPC status.
    MemberMessage(text) => member_messages(text);
    /// The message of the API server.
    ApiServerMessage(text) => vec![api_server_message(text)];
    /// The user of a review.
    UserName(text) => vec![request_of_user(text).user];
    /// The name of a cluster, from an ownerReference.
    ClusterName(text) => vec![cluster_name(text)];
    /// Values of annotations in the effective policy and in warnings.
    PolicyTexts(text) => policy_texts(text);
    /// Every text of a verdict.
    VerdictTexts(text) => verdicts(text).iter().flat_map(verdict_texts).collect();
    /// The words of commands in remedies.
    Commands(text) => commands(text);
    /// The response to `/validate`.
    VerdictResponse(text) => all_lines(&json_texts(&webhook_outputs::verdict_response(&verdict(text))));
    /// The response to `/mutate`.
    MutationResponse(text) => json_texts(&webhook_outputs::mutation_response(text));
    /// The response to a malformed request.
    BadRequestResponse(text) => json_texts(&webhook_outputs::bad_request_response(text));
    /// The response to an invalid review.
    InvalidReviewResponse(text) => json_texts(&webhook_outputs::invalid_review_response(text));
    /// An HTTP error without a review.
    HttpError(text) => lines(&block_on(webhook_outputs::http_error(text)));
    /// An Event and the names of its objects.
    Event(text) => event_texts(text);
    /// Log lines as text.
    TextLog(text) => lines(&log_of(false, || webhook_outputs::log(&request(text), &verdict(text), text)));
    /// Log lines as JSON.
    JsonLog(text) => json_lines(&log_of(true, || webhook_outputs::log(&request(text), &verdict(text), text)));
    /// The attributes of trace spans.
    SpanAttributes(text) => webhook_outputs::span_attributes(&request(text), &verdict(text), text);
    /// The response to `/status`.
    StatusJson(text) => json_texts(&utf8(block_on(admin_outputs::body(&survey(text)))));
    /// The response to `/check`.
    CheckJson(text) => json_texts(&utf8(block_on(admin_outputs::body(&admin_outputs::preview(&verdict(text))))));
    /// The terminal of `kubectl etcd-guard status`, for an answer that the guard did not escape.
    StatusTerminal(text) => all_lines(&status_texts(&serde_json::to_vec(&survey(text)).unwrap()));
    /// The terminal of `kubectl etcd-guard check`, for an answer that the guard did not escape.
    CheckTerminal(text) => check_terminal(text);
    /// The report of `kubectl etcd-guard inspect`: the table, JSON, YAML and the Role.
    InspectReport(text) => all_lines(&inspect_texts(&inspection(text)));
    /// The terminal of `kubectl etcd-guard doctor`.
    DoctorTerminal(text) => lines(&doctor_text(text));
    /// The terminal of `kubectl etcd-guard version`.
    VersionTerminal(text) => all_lines(&version_texts(text));
    /// The line of an error, and the notice of a long call.
    ErrorLine(text) => all_lines(&error_and_notice(text));
    /// The terminal of `kubectl etcd-guard conformance`.
    ConformanceTerminal(text) => lines(&conformance_text(text));
    /// The terminal of `kubectl etcd-guard restart`, `move-leader`, `drain` and `check node/NAME`.
    MaintenanceTerminal(text) => lines(&maintenance_text(text));
    /// JSON that a command prints.
    PrintedJson(text) => lines(&escape_json(&serde_json::to_string_pretty(&text.chars().take(MAX_TEXT_CHARS).collect::<String>()).unwrap()));
    /// The page of `/metrics`.
    MetricsPage(text) => lines(&metrics_page(text));
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn utf8(body: Vec<u8>) -> String {
    String::from_utf8(body).unwrap()
}

fn lines(text: &str) -> Vec<String> {
    text.split('\n').map(str::to_owned).collect()
}

fn all_lines(texts: &[String]) -> Vec<String> {
    texts.iter().flat_map(|printed| lines(printed)).collect()
}

/// Returns the lines of a log, each of which is a JSON value.
fn json_lines(log: &str) -> Vec<String> {
    for line in log.lines() {
        assert!(serde_json::from_str::<Value>(line).is_ok_and(|value| value.is_object()), "{line:.200}");
    }
    lines(log)
}

/// Returns a JSON value as it is sent, and every text in it as a client reads it.
fn json_texts(json: &str) -> Vec<String> {
    fn collect(value: &Value, texts: &mut Vec<String>) {
        match value {
            Value::String(text) => texts.push(text.clone()),
            Value::Array(items) => items.iter().for_each(|item| collect(item, texts)),
            Value::Object(members) => members.values().for_each(|member| collect(member, texts)),
            _ => {}
        }
    }
    let mut texts = lines(json);
    collect(&serde_json::from_str(json).unwrap(), &mut texts);
    texts
}

/// Returns the errors for a message with each gRPC status code.
fn member_messages(text: &str) -> Vec<String> {
    let error = |code: i32| member_error(&Error::GRpcStatus(tonic::Status::new(code.into(), text)));
    (1..=16).map(|code| error(code).to_string()).collect()
}

fn api_server_message(text: &str) -> String {
    let status = serde_json::from_value(status_failure(500, text)).unwrap();
    error_message(&kube::Error::Api(Box::new(status)))
}

fn verdict_texts(verdict: &Verdict) -> Vec<String> {
    let mut texts = vec![verdict.message.clone(), verdict.line()];
    texts.extend(verdict.lines());
    texts.extend(verdict.remedy.clone());
    texts.extend(verdict.advice.clone());
    texts.extend(verdict.cluster.clone());
    texts.extend(verdict.warnings.clone());
    texts.extend(verdict.audit_annotations().into_iter().map(|(_, value)| value));
    texts
}

/// A verdict with this text in each field, as if no step had escaped it.
fn verdict(text: &str) -> Verdict {
    let text = || text.to_owned();
    Verdict {
        reason: Reason::QuorumAtRisk,
        message: text(),
        remedy: Some(text()),
        advice: vec![text()],
        member: Some(MemberId(1)),
        warnings: vec![text()],
        tally: None,
        cluster: Some(text()),
        inaccessible_pod: None,
        data_age: None,
        audited: false,
        overruled: None,
    }
}

/// A status with this text in each field.
fn survey(text: &str) -> Survey {
    let text = || text.to_owned();
    let member = MemberStatus {
        pod: Some(text()),
        owner_kind: Some(text()),
        address: Some(text()),
        id: Some(text()),
        name: Some(text()),
        role: Role::Follower,
        serving: false,
        cause: Some(text()),
        version: Some(text()),
        lag: Some(1),
        database_bytes: Some(1),
        free_bytes: Some(1),
        quota_bytes: Some(1),
        storage: Some(text()),
        downgrade: Some(text()),
        leaving: Some(text()),
    };
    let cluster = ClusterStatus {
        namespace: text(),
        name: text(),
        id: Some(text()),
        voters: Some(3),
        healthy: Some(2),
        quorum: Some(2),
        spare: Some(0),
        term: Some(7),
        members: vec![member.clone(), MemberStatus { pod: None, ..member }],
        reservations: vec![ReservationStatus { pod: text(), at: text(), by: text() }],
        policy: vec![PolicySetting { name: text(), value: text(), from: text() }],
        problems: vec![text()],
        traps: vec![text()],
        last_backup: Some(BackupStatus { at: text(), revision: 1 }),
    };
    let gap = RecognitionGap { namespace: text(), pod: Some(text()), text: text() };
    Survey {
        clusters: vec![cluster],
        problems: vec![text()],
        unread_namespaces: Some(Vec::new()),
        warnings: vec![text()],
        gaps: vec![gap],
        guard_priority: Some(0),
        opt_in_label: Some(OptInLabel::default()),
    }
}

fn check_terminal(text: &str) -> Vec<String> {
    let body = serde_json::to_vec(&admin_outputs::preview(&verdict(text))).unwrap();
    all_lines(&check_texts(&body, text))
}

fn event_texts(text: &str) -> Vec<String> {
    let object = EventRecord::object(("v1", "Pod"), Some("prod"), text, Some(text));
    let record = EventRecord {
        object: object.clone(),
        stateful_set: None,
        is_warning: true,
        reason: "QuorumAtRisk",
        action: "Delete",
        note: text.to_owned(),
        documentation: Some(Manual::default().reason(Reason::QuorumAtRisk)),
    };
    let note = record.event(None).note.unwrap();
    assert!(note.len() <= 1024, "the API server rejects longer notes");
    [Some(note), object.name, object.uid].into_iter().flatten().collect()
}

fn metrics_page(text: &str) -> String {
    let mut registry = prometheus_client::registry::Registry::default();
    record_metrics(&mut registry, text);
    webhook_outputs::record_metrics(&mut registry, &verdict(text));
    let page = admin_outputs::metrics(&registry);
    // Bounds are the only labels with an open set of values.
    assert!(page.contains("QuorumAtRisk") && page.contains("stale_reads"), "{page}");
    page
}

/// Texts that a foreign system can choose, up to 1 MiB.
fn hostile_text() -> impl Strategy<Value = String> {
    let fragment = prop_oneof![
        4 => proptest::sample::select(vec![
            "\u{1b}[2J\u{1b}[31m", "\u{1b}]0;title\u{7}", "\u{9b}2J", "\u{85}", "\0", "\u{7f}", "\u{8}", "\r\n", "\n", "\t",
            "\u{202e}", "\u{202a}", "\u{2066}", "\u{2069}", "\u{200e}", "\u{200f}", "\u{61c}", "\u{2028}", "\u{2029}",
            "'; reboot #", "'$(reboot)'", "$(reboot)", "`reboot`", "\"; reboot; \"", " && reboot", " | sh", "> /etc/passwd",
            "\\", "'", "''", "--all", " -A ", "*", "~", "\u{e9}", "\u{754c}", "etcd", "{\"a\":1}", "</script>", "%s",
        ]).prop_map(str::to_owned),
        1 => any::<char>().prop_map(String::from),
    ];
    let text = proptest::collection::vec(fragment, 1..16).prop_map(|fragments| fragments.concat());
    prop_oneof![
        15 => text.clone(),
        1 => text.prop_map(|text| text.repeat((1 << 20) / text.len() + 1)),
    ]
}

/// Maximum length of one line in characters. A line of a table has several texts, and the JSON of `status`, which is one
/// line, has all texts of a cluster.
const MAX_LINE_CHARS: usize = 64 * MAX_TEXT_CHARS;

fn controls_a_terminal(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{61c}' | '\u{2028}' | '\u{2029}')
}

/// Returns the words of a command. Fails for characters that a shell interprets outside of quotes.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = command.chars();
    let mut is_quoted = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\'' => is_quoted = !is_quoted,
            _ if is_quoted => words.last_mut().unwrap().push(letter),
            '\\' => words.last_mut().unwrap().extend(letters.next()),
            ' ' => words.push(String::new()),
            _ => {
                assert!(!"$`;&|<>()[]{}*?!#~\"\n".contains(letter), "unquoted {letter:?} in {command:.300}");
                words.last_mut().unwrap().push(letter);
            }
        }
    }
    assert!(!is_quoted, "an open quote in {command:.300}");
    words
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn foreign_texts_control_no_output(text in hostile_text()) {
        for place in Place::ALL {
            let shown = place.texts(&text);
            for line in &shown {
                let letter = line.chars().find(|letter| controls_a_terminal(*letter));
                prop_assert!(letter.is_none(), "{place:?} contains {letter:?}: {line:.300}");
                let length = line.chars().count();
                prop_assert!(length <= MAX_LINE_CHARS, "{place:?} has {length} characters: {line:.300}");
            }
            let harmless = place.texts("x");
            prop_assert_eq!(shown.len(), harmless.len(), "{:?} has other lines: {:?}", place, shown);
        }
        for (command, harmless) in commands(&text).iter().zip(commands("x")) {
            let (found, expected) = (words(command), words(&harmless));
            if found.iter().any(|word| word == "namespace") {
                // The StatefulSet has no valid name.
                prop_assert!(!found.iter().any(|word| word.starts_with("--all")), "{command:.300}");
            } else {
                prop_assert_eq!(found.len(), expected.len(), "{:.300}", command);
            }
        }
    }
}

#[test]
fn quotes_words_for_a_shell() {
    assert_eq!(to_shell_word("etcd-0"), "etcd-0");
    assert_eq!(to_shell_word(""), "''");
    assert_eq!(to_shell_word("a'b\n$(c)"), r"'a'\''b$(c)'");
    assert_eq!(words(&format!("kubectl get {}", to_shell_word("a'b $(c)"))), ["kubectl", "get", "a'b $(c)"]);
}
