//! The commands for maintenance on a real node: on a cluster without and one with TLS, and on one that an operator owns. Each is killed at
//! each of its steps, and repeated until it is complete. Requires root.
//!
//! The script `tests/maintenance_node/story.sh` runs once, for about ten minutes, and writes a report.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use std::{collections::BTreeMap, fs, process::Command};

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/docs_node/run");
const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/maintenance_node/story.sh");

const CLUSTERS: [&str; 3] = ["plain", "secure", "owned"];

/// The commands, and how often each is killed at least. `backup` and `defrag` have no state of their own.
const COMMANDS: [(&str, usize); 5] =
    [("backup", 0), ("replace", 5), ("restart", 3), ("defrag", 1), ("restore", 5)];

#[test]
#[ignore = "ten minutes, in scripts/prove maintenance"]
fn commands_that_are_killed_at_each_step_are_complete_after_repetition() {
    let folder = tempfile::tempdir().unwrap();
    let status = Command::new(RUN).arg(STORY).arg(folder.path()).status().unwrap();
    let report = fs::read_to_string(folder.path().join("report")).unwrap_or_default();
    println!("{report}");
    assert!(status.success(), "{status}");
    let kills: BTreeMap<&str, usize> = report
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .map(|words| (words[0], words[1].parse().unwrap()))
        .collect();
    for cluster in CLUSTERS {
        for (command, least) in COMMANDS {
            let found = kills.get(format!("{cluster}-{command}").as_str());
            assert!(found.is_some_and(|kills| *kills >= least), "{cluster}-{command}: {report}");
        }
    }
}
