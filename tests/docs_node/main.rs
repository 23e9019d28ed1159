//! The commands of the documentation, executed in their order on a real node. Requires root.
//!
//! The script `tests/docs_node/story.sh` runs once, all pages. `tests/docs_node/scenes.sh`
//! prepares the state that the commands of a section require.

// A failed assertion is a panic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, ExitStatus},
    sync::LazyLock,
};

use test_support::documentation::{Block, Mark, PAGES, blocks};

const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/docs_node/run");
const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/docs_node/story.sh");

/// A section of a page with its executed blocks.
struct Section {
    page: &'static str,
    /// `PAGE-ANCHOR`, the name that scenes use.
    name: String,
    blocks: Vec<Block>,
}

/// The result of the script: its exit status, and the number of successful commands of each section.
struct Outcome {
    status: ExitStatus,
    ran: BTreeMap<String, usize>,
}

static OUTCOME: LazyLock<Outcome> = LazyLock::new(run_script);

/// Returns all sections with executed commands, in the order of the pages.
fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for page in PAGES {
        let stem = Path::new(page).file_stem().unwrap().to_string_lossy().to_lowercase();
        for block in blocks(page).into_iter().filter(Block::is_run) {
            let name = format!("{stem}-{}", block.section);
            match sections.last_mut().filter(|section| section.name == name) {
                Some(section) => section.blocks.push(block),
                None => sections.push(Section { page, name, blocks: vec![block] }),
            }
        }
    }
    sections
}

/// Returns a script that prints, executes and counts the commands of a section. A failure ends the script.
fn script(section: &Section) -> String {
    let mut script = String::from("set -euo pipefail\n");
    for block in &section.blocks {
        for command in &block.commands {
            let shown = command.replace('\'', r"'\''");
            writeln!(script, "printf '%s\\n' '$ {shown}' >&2").unwrap();
            if block.mark == Mark::Answered {
                // Exit status 2 is a failed preview.
                writeln!(script, "status=0; {{ {command}\n}} || status=$?").unwrap();
                script.push_str("[[ $status -le 1 ]]\n");
            } else if block.mark == Mark::Denied {
                // The output must contain the denial: the page promises no other failure.
                writeln!(
                    script,
                    "if output=$({{ {command}\n}} 2>&1); then status=allowed; else status=failed; fi"
                )
                .unwrap();
                script.push_str("printf '%s\\n' \"$output\" >&2\n");
                script.push_str("[[ $status == failed && $output == *'denied the request'* ]]\n");
            } else {
                writeln!(script, "{command}").unwrap();
            }
            script.push_str("printf 'x' >>\"$RAN\"\n");
        }
    }
    script
}

fn run_script() -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = String::new();
    for (number, section) in sections().iter().enumerate() {
        let file = folder.path().join(format!("{number}.sh"));
        fs::write(&file, script(section)).unwrap();
        writeln!(plan, "{}\t{}", section.name, file.display()).unwrap();
    }
    fs::write(folder.path().join("plan"), plan).unwrap();
    let status = Command::new(RUN).arg(STORY).arg(folder.path()).status().unwrap();
    let report = fs::read_to_string(folder.path().join("report")).unwrap_or_default();
    let counted = |line: &str| {
        let (name, count) = line.split_once('\t')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    Outcome { status, ran: report.lines().filter_map(counted).collect() }
}

/// Asserts that all commands of a page succeeded, and names the first that did not.
#[track_caller]
fn assert_run(page: &str) {
    for section in sections().iter().filter(|section| section.page == page) {
        let commands: Vec<&String> = section.blocks.iter().flat_map(|block| &block.commands).collect();
        let ran = OUTCOME.ran.get(&section.name).copied().unwrap_or_default();
        let failed = commands.get(ran);
        assert_eq!(failed, None, "{}: this command failed or was not reached", section.blocks[0].place);
    }
}

#[test]
fn commands_of_the_readme_work() {
    assert_run("README.md");
}

#[test]
fn commands_of_the_install_page_work() {
    assert_run("docs/install.md");
}

#[test]
fn commands_for_on_call_work() {
    assert_run("docs/reasons.md");
    assert_run("docs/alerts.md");
}

#[test]
fn commands_of_the_recipes_work() {
    assert_run("docs/recipes.md");
}

#[test]
fn commands_of_the_monitoring_page_work() {
    assert_run("docs/monitoring.md");
}

#[test]
fn commands_of_the_page_about_uninstalling_work() {
    assert_run("docs/uninstall.md");
}

#[test]
fn script_runs_to_its_end() {
    assert!(OUTCOME.status.success(), "{}", OUTCOME.status);
}
