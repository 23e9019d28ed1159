//! Recorded traces, and small ones that the comparison must accept or reject.

use std::{env, fs, path::Path};

use super::*;

/// Recorded runs of the simulation and of the stress test.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/traces");

/// Seeded mistakes that the comparison cannot detect, because it does not contain leadership.
const MISTAKES_OF_LEADERSHIP: [&str; 2] = ["CountStaleRead", "SkipSecondProbe"];

/// Returns the traces of a folder with the names of their files.
fn traces(folder: &Path) -> Vec<(String, String)> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut traces: Vec<(String, String)> = files
        .filter(|file| file.extension().is_some_and(|extension| extension == "jsonl"))
        .map(|file| {
            (file.file_name().unwrap().to_string_lossy().into_owned(), fs::read_to_string(&file).unwrap())
        })
        .collect();
    traces.sort();
    traces
}

/// Compares all traces of a folder, and returns their number. Runs of a guard with a seeded mistake, whose names begin with
/// `mistake-`, must differ from the model.
fn compare_all(folder: &Path) -> usize {
    let (mut total, mut unexpected) = (Compared::default(), Vec::new());
    let traces = traces(folder);
    for (name, trace) in &traces {
        match (compare(trace), name.starts_with("mistake-")) {
            (Ok(compared), false) => {
                total.reservations += compared.reservations;
                total.deletions += compared.deletions;
            }
            (Ok(_), true) if MISTAKES_OF_LEADERSHIP.iter().any(|mistake| name.contains(mistake)) => {
                println!("{name}: the comparison does not contain leadership");
            }
            (Ok(_), true) => unexpected.push(format!("{name}: the comparison did not detect the mistake")),
            (Err(Difference::Run(cause)), true) => {
                println!("{name}: {}", cause.split(": State").next().unwrap_or_default());
            }
            (Err(cause), _) => unexpected.push(format!("{name}: {cause:?}")),
        }
    }
    let Compared { reservations, deletions } = total;
    let has_runs = traces.iter().any(|(name, _)| !name.starts_with("mistake-"));
    assert!(!has_runs || reservations > 0 && deletions > 0, "no event was compared");
    println!(
        "{} traces: the model contains {reservations} reservations and {deletions} deletions",
        traces.len()
    );
    assert!(unexpected.is_empty(), "{} unexpected results:\n{}", unexpected.len(), unexpected.join("\n"));
    traces.len()
}

#[test]
fn recorded_runs_are_runs_of_the_model() {
    assert!(compare_all(Path::new(RECORDED)) >= 10);
}

/// `scripts/simulate --compare` and `scripts/storm --compare` run this test after the recorded runs.
#[test]
#[ignore = "needs PROTOCOL_TRACES, a folder with traces; scripts/simulate --compare sets it"]
fn traces_of_environment_are_runs_of_the_model() {
    let folder = env::var_os("PROTOCOL_TRACES").expect("PROTOCOL_TRACES is set");
    assert!(compare_all(Path::new(&folder)) > 0, "no trace: the comparison does not cover the runs");
}

/// Returns a trace in which three voters start, followed by `events`.
fn trace(events: &[&str]) -> String {
    let mut lines = vec![String::from(r#"{"voters":["etcd-0","etcd-1","etcd-2"],"learners":[]}"#)];
    for pod in 0..3 {
        lines.push(format!(r#"{{"ms":1,"created":{{"pod":"etcd-{pod}","uid":"u{pod}"}}}}"#));
        lines.push(format!(r#"{{"ms":2,"running":"u{pod}"}}"#));
    }
    lines.extend(events.iter().map(|event| (*event).to_owned()));
    lines.join("\n")
}

const FIRST: [&str; 3] = [
    r#"{"ms":1000,"record":[["u0","a"]]}"#,
    r#"{"ms":1001,"approved":"u0"}"#,
    r#"{"ms":1002,"terminating":"u0"}"#,
];

fn after_first(events: &[&str]) -> Result<Compared, Difference> {
    compare(&trace(&[&FIRST, events].concat()))
}

#[test]
fn accepts_a_deletion_after_the_successor_serves() {
    let compared = after_first(&[
        r#"{"ms":3000,"gone":"u0"}"#,
        r#"{"ms":3001,"created":{"pod":"etcd-0","uid":"u3"}}"#,
        r#"{"ms":3002,"running":"u3"}"#,
        r#"{"ms":15000,"record":[["u1","b"]]}"#,
        r#"{"ms":15001,"approved":"u1"}"#,
        r#"{"ms":15002,"terminating":"u1"}"#,
    ]);
    assert_eq!(compared, Ok(Compared { reservations: 2, deletions: 2 }));
}

#[test]
fn accepts_reservation_after_expiry_of_unused_reservation() {
    let events = [FIRST[0], FIRST[1], r#"{"ms":61001,"record":[["u1","b"]]}"#];
    assert!(compare(&trace(&events)).is_ok());
}

/// A failed transfer ends with a denial, and the guard withdraws the reservation.
#[test]
fn accepts_withdrawal_of_reservation_without_approval() {
    let events = [
        FIRST[0],
        r#"{"ms":1500,"record":[]}"#,
        r#"{"ms":2000,"record":[["u1","b"]]}"#,
        r#"{"ms":2001,"approved":"u1"}"#,
        r#"{"ms":2002,"terminating":"u1"}"#,
    ];
    assert_eq!(compare(&trace(&events)), Ok(Compared { reservations: 2, deletions: 1 }));
}

/// Asserts that the comparison finds this difference.
#[track_caller]
fn assert_differs(events: &[&str], cause: &str) {
    match compare(&trace(events)) {
        Err(Difference::Run(difference)) => assert!(difference.contains(cause), "{difference}"),
        other => panic!("{other:?}"),
    }
}

/// The model denies the second deletion before the reservation of the first pod expires, while the first pod leaves, and while its
/// successor does not run.
#[test]
fn rejects_second_reservation_of_three_voters() {
    let cause = "no evaluation of the model reserves pod 1.0";
    let second = r#"{"ms":15000,"record":[["u0","a"],["u1","b"]]}"#;
    let replaced =
        [r#"{"ms":3000,"gone":"u0"}"#, r#"{"ms":3001,"created":{"pod":"etcd-0","uid":"u3"}}"#, second];
    assert_differs(&[FIRST[0], FIRST[1], second], cause);
    assert_differs(&[&FIRST[..], &[second]].concat(), cause);
    assert_differs(&[&FIRST[..], &replaced].concat(), cause);
}

#[test]
fn rejects_lost_reservation() {
    let events = [FIRST[0], FIRST[1], r#"{"ms":1500,"record":[]}"#];
    assert_differs(&events, "the active reservation of pod 0.0 was removed");
}

#[test]
fn rejects_approval_without_reservation() {
    assert_differs(&[FIRST[1]], "approved without a reservation");
}

#[test]
fn rejects_deletion_without_approval() {
    assert_differs(&[FIRST[2]], "approved without a reservation");
}

#[test]
fn reports_invalid_traces() {
    assert!(matches!(compare(""), Err(Difference::Invalid(_))));
    assert!(matches!(compare(&trace(&["{}"])), Err(Difference::Invalid(_))));
}
