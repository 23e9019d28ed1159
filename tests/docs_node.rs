//! The documentation's commands, run as they stand there and in their order, on a whole real node. Needs root.
//!
//! One story is played, `tests/docs_node/story.sh`: the README as a new user follows it, then the runbook, then installing and
//! uninstalling. What it sets up before a section, so that the section's commands have something to do, stands in
//! `tests/docs_node/scenes.sh`.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code, unreachable_pub, reason = "shared with the test of the pages themselves")]
#[path = "support"]
mod support {
    pub mod documented;
}

use std::{
    collections::HashMap,
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, ExitStatus},
    sync::LazyLock,
};

use support::documented::{Block, Mark, PAGES, blocks};

const STORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/docs_node/run");

/// A section of a page, with the blocks that are run.
struct Section {
    page: &'static str,
    /// `PAGE-ANCHOR`, by which scenes name it.
    name: String,
    blocks: Vec<Block>,
}

/// What was played: how it ended, and how many commands of each section succeeded.
struct Story {
    ended: ExitStatus,
    ran: HashMap<String, usize>,
}

static PLAYED: LazyLock<Story> = LazyLock::new(play);

/// All sections with commands to run, in the order of the pages.
fn sections() -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for page in PAGES {
        let stem = Path::new(page).file_stem().unwrap().to_string_lossy().to_lowercase();
        for block in blocks(page).into_iter().filter(Block::is_run) {
            let name = format!("{stem}-{}", block.section);
            match sections.last_mut().filter(|it| it.name == name) {
                Some(section) => section.blocks.push(block),
                None => sections.push(Section { page, name, blocks: vec![block] }),
            }
        }
    }
    sections
}

/// A script of a section's commands: each is shown, run, and noted. What fails ends it.
fn script(section: &Section) -> String {
    let mut script = String::from("set -euo pipefail\n");
    for block in &section.blocks {
        for command in &block.commands {
            let shown = command.replace('\'', r"'\''");
            writeln!(script, "printf '%s\\n' '$ {shown}' >&2").unwrap();
            if block.mark == Mark::Answered {
                // 2 is no answer.
                writeln!(script, "status=0; {{ {command}\n}} || status=$?").unwrap();
                script.push_str("[[ $status -le 1 ]]\n");
            } else if block.mark == Mark::Denied {
                // Its words are looked at: any other failure is none that the page promises.
                writeln!(
                    script,
                    "if said=$({{ {command}\n}} 2>&1); then status=allowed; else status=failed; fi"
                )
                .unwrap();
                script.push_str("printf '%s\\n' \"$said\" >&2\n");
                script.push_str("[[ $status == failed && $said == *'denied the request'* ]]\n");
            } else {
                writeln!(script, "{command}").unwrap();
            }
            script.push_str("printf 'x' >>\"$RAN\"\n");
        }
    }
    script
}

fn play() -> Story {
    let folder = tempfile::tempdir().unwrap();
    let mut plan = String::new();
    for (number, section) in sections().iter().enumerate() {
        let file = folder.path().join(format!("{number}.sh"));
        fs::write(&file, script(section)).unwrap();
        writeln!(plan, "{}\t{}", section.name, file.display()).unwrap();
    }
    fs::write(folder.path().join("plan"), plan).unwrap();
    let ended = Command::new(STORY).arg(folder.path()).status().unwrap();
    let report = fs::read_to_string(folder.path().join("report")).unwrap_or_default();
    let counted = |line: &str| {
        let (name, count) = line.split_once('\t')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    Story { ended, ran: report.lines().filter_map(counted).collect() }
}

/// Of one page: each test names what does not work.
#[track_caller]
fn assert_run(page: &str) {
    for section in sections().iter().filter(|it| it.page == page) {
        let commands: Vec<&String> = section.blocks.iter().flat_map(|it| &it.commands).collect();
        let ran = PLAYED.ran.get(&section.name).copied().unwrap_or_default();
        let failed = commands.get(ran);
        assert_eq!(failed, None, "{}: this did not work, or was not reached", section.blocks[0].place);
    }
}

#[test]
fn a_new_user_who_follows_the_readme_sees_a_denied_deletion() {
    assert_run("README.md");
}

#[test]
fn the_runbooks_commands_do_what_they_say() {
    assert_run("docs/runbook.md");
}

#[test]
fn the_guard_is_installed_and_uninstalled_by_the_commands_of_the_page_about_it() {
    assert_run("docs/install.md");
}

#[test]
fn the_commands_of_the_page_about_monitoring_work() {
    assert_run("docs/monitoring.md");
}

#[test]
fn the_story_comes_to_its_end() {
    assert!(PLAYED.ended.success(), "{}", PLAYED.ended);
}
