//! The documentation, as far as it can be told without running it: links lead somewhere, every alert and every reason has its
//! place, and every command is run by `tests/docs_node.rs` or says why not.

// A test says by a panic what is not as it should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[allow(dead_code, unreachable_pub, reason = "shared with the test that runs the commands")]
#[path = "support"]
mod support {
    pub mod documented;
}

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use etcd_guard::guard::Reason;
use serde_json::Value;
use support::documented::{Mark, PAGES, anchors, blocks, mentions, page, prose, root};

/// All pages: the README, the changelog, and what lies under docs/.
fn pages() -> Vec<String> {
    let mut pages = vec![String::from("README.md"), String::from("CHANGELOG.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "md") {
                pages.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    pages.sort();
    pages
}

/// The targets of a line's links, those of pictures too.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|it| it.split(')').next())
}

/// A path without `.` and `..` in it.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => drop(plain.pop()),
            std::path::Component::CurDir => {}
            part => plain.push(part),
        }
    }
    plain
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut links = 0;
    for name in pages() {
        // A link may be broken over two lines, in its text.
        let text = page(&name);
        for (number, line) in prose(&text) {
            for target in targets(line).filter(|it| !it.contains("://")) {
                links += 1;
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => root().join(&name),
                    file => plain(&root().join(&name).parent().unwrap().join(file)),
                };
                assert!(path.exists(), "{name}:{number}: {target} leads nowhere");
                if !anchor.is_empty() {
                    let there = anchors(&fs::read_to_string(&path).unwrap());
                    assert!(
                        there.iter().any(|it| it == anchor),
                        "{name}:{number}: {target}: no such heading"
                    );
                }
            }
        }
    }
    assert!(links > 50, "{links} links were found");
}

#[test]
fn every_decision_is_in_the_list_of_decisions() {
    let list = page("docs/decisions/README.md");
    for name in pages().iter().filter_map(|it| it.strip_prefix("docs/decisions/")) {
        assert!(name == "README.md" || list.contains(&format!("]({name})")), "{name} is not in the list");
    }
}

#[test]
fn every_reason_has_a_paragraph_and_its_place_in_the_runbook() {
    let reasons = page("docs/reasons.md");
    let text = page("docs/runbook.md");
    let runbook = anchors(&text);
    let (allowed, denied) = reasons.split_once("## Denied").unwrap();
    for reason in Reason::ALL {
        let bold = format!("**{reason}**");
        let part = if reason.allows() { allowed } else { denied };
        assert!(part.contains(&bold), "docs/reasons.md has no {bold} where it should be");
        // Those of a yes have a line of the table.
        let has_line = || {
            let rows = text.lines().filter(|it| it.starts_with("| `"));
            rows.filter_map(|it| it.split('|').nth(1)).any(|it| it.contains(&format!("`{reason}`")))
        };
        let has_section = || runbook.contains(&reason.word().to_lowercase());
        let has_place = if reason.allows() { has_line() } else { has_section() };
        assert!(has_place, "docs/runbook.md has nothing about {reason}");
    }
}

/// A link to elsewhere is no help at three in the morning.
#[test]
fn every_alert_and_every_reason_of_a_denial_has_commands_of_its_own() {
    let text = page("docs/runbook.md");
    let (_, after) = text.split_once("\n## Alerts\n").unwrap();
    let (sections, _) = after.split_once("\n## Recipes\n").unwrap();
    let sections = anchors(sections);
    assert!(sections.len() > 25, "{sections:?}");
    let blocks = blocks("docs/runbook.md");
    for section in sections.iter().filter(|it| *it != "reasons") {
        let mut of_it = blocks.iter().filter(|it| it.section == *section);
        assert!(of_it.any(|it| !it.commands.is_empty()), "docs/runbook.md#{section} has no command");
    }
}

#[test]
fn every_alert_leads_to_its_section_of_the_runbook() {
    let file = page("deploy/components/monitoring/prometheus-rule.yaml");
    let rule: Value = serde_saphyr::from_str(&file).unwrap();
    let runbook = anchors(&page("docs/runbook.md"));
    let mut alerts = BTreeSet::new();
    for rule in
        rule["spec"]["groups"].as_array().unwrap().iter().flat_map(|it| it["rules"].as_array().unwrap())
    {
        let anchor = rule["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(rule["annotations"]["runbook_url"], format!("docs/runbook.md#{anchor}"));
        assert!(runbook.contains(&anchor), "docs/runbook.md has no section {anchor}");
        alerts.insert(anchor);
    }
    let told: BTreeSet<_> = runbook.into_iter().filter(|it| it.starts_with("etcdguard")).collect();
    assert_eq!(told, alerts, "sections of alerts that there are");
}

/// So that nobody adds a command that no test runs: what has no mark is run.
#[test]
fn every_command_is_run_or_says_why_not() {
    let mut run = 0;
    for block in PAGES.iter().flat_map(|name| blocks(name)) {
        let place = &block.place;
        let looks_typed =
            block.text.lines().any(|it| it.trim_start().starts_with("$ ")) || !block.commands.is_empty();
        match block.language.as_str() {
            "console" => assert!(!block.commands.is_empty(), "{place}: a command begins with `$ `"),
            "sh" | "bash" | "shell" | "" => {
                panic!("{place}: commands stand in a block `console`, after `$ `")
            }
            _ => assert!(!looks_typed, "{place}: commands stand in a block `console`"),
        }
        match &block.mark {
            Mark::Run | Mark::Denied | Mark::Answered => run += block.commands.len(),
            Mark::NotRun(reason) => assert_reason(place, reason),
            Mark::Unknown(mark) => {
                panic!(
                    "{place}: {mark:?} is no mark; `not run: REASON`, `run: denied` and `run: answered` are"
                )
            }
        }
    }
    assert!(run > 60, "{run} commands are run");
}

#[track_caller]
fn assert_reason(place: &str, reason: &str) {
    assert!(reason.len() > 20, "{place}: {reason:?} is no reason");
    for file in reason.split([' ', ';', ',']).filter(|it| it.starts_with("tests/")) {
        assert!(root().join(file).exists(), "{place}: there is no {file}");
    }
}

/// What a sentence names is as likely to be typed as what stands in a block.
#[test]
fn every_command_in_a_sentence_stands_in_a_block_as_well_or_says_why_it_is_not_run() {
    let typed: Vec<String> = PAGES.iter().flat_map(|name| blocks(name)).flat_map(|it| it.commands).collect();
    // Whole, or its beginning: `kubectl apply` is run by whoever runs `kubectl apply -k DIR`.
    let is_typed = |command: &str| {
        typed
            .iter()
            .any(|it| it.strip_prefix(command).is_some_and(|rest| rest.is_empty() || rest.starts_with(' ')))
    };
    let (mut named, mut excused) = (0, 0);
    for mention in PAGES.iter().flat_map(|name| mentions(name)) {
        named += 1;
        let (place, command) = (&mention.place, &mention.command);
        match &mention.mark {
            Mark::NotRun(reason) => {
                excused += 1;
                assert_reason(place, reason);
            }
            Mark::Run => assert!(
                is_typed(command),
                "{place}: no block has `{command}`, and no `not run: REASON` begins its paragraph"
            ),
            mark => panic!("{place}: {mark:?} is for blocks"),
        }
    }
    assert!(named > 15 && excused < named, "{named} commands in sentences, {excused} not run");
}

#[test]
fn a_new_user_reads_the_readme_in_one_go() {
    let lines = page("README.md").lines().count();
    assert!(lines <= 150, "{lines} lines");
}

/// What the recorded terminal showed, without what makes it bold or dim.
fn recorded() -> String {
    let record = page("docs/demo.cast");
    let mut shown = String::new();
    for event in record.lines().skip(1) {
        let (_, _, text): (f64, String, String) = serde_json::from_str(event).unwrap();
        let mut parts = text.split('\u{1b}');
        shown.push_str(parts.next().unwrap());
        for part in parts {
            shown.push_str(part.split_once('m').unwrap().1);
        }
    }
    shown.replace('\r', "")
}

/// What of a command is the same in every run: up to the first word that names a pod, a node or a member of that one.
fn lasting_part(command: &str) -> String {
    let words =
        command.split(' ').take_while(|it| *it != "node" && !it.contains(|it: char| it.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// When the story changes, the record is made anew: `scripts/record`.
#[test]
fn the_recorded_session_is_the_story_that_the_demo_tells() {
    let story = page("scripts/demo.d/story.sh") + &page("scripts/demo.d/deploy.sh");
    let recorded = recorded();
    let typed: Vec<&str> = recorded.lines().filter_map(|it| it.strip_prefix("$ ")).collect();
    assert!(typed.len() >= 10, "{typed:?}");
    for command in typed {
        let lasting = lasting_part(command);
        assert!(lasting.contains(' ') && story.contains(&lasting), "no {lasting:?} in the story: {command}");
    }
    let story = page("scripts/demo.d/story.sh");
    let headings = story.lines().filter_map(|it| it.trim().strip_prefix("heading "));
    // The first stands above a table that no README is wide enough for.
    for heading in headings.skip(1) {
        let words = heading.trim_matches(['\'', '"']).split([',', '$']).next().unwrap();
        assert!(recorded.contains(&format!("== {words}")), "no heading {words:?} in the record");
    }
    assert!(recorded.contains(" 0 differences"), "{recorded}");
}

#[test]
fn the_picture_of_the_demo_shows_its_record_and_needs_nothing_from_elsewhere() {
    let picture = page("docs/demo.svg");
    let recorded = recorded();
    let parsed = roxmltree::Document::parse(&picture).unwrap();
    let mut shown = 0;
    for node in parsed.descendants() {
        let name = node.tag_name().name();
        assert!(!["script", "image", "foreignObject"].contains(&name), "{name}");
        if name == "text" {
            shown += 1;
            let text = node.text().unwrap_or_default().replace('\u{a0}', " ");
            assert!(recorded.contains(text.trim()), "{text:?} is not in the record");
        }
        for attribute in node.attributes().filter(|it| it.name() == "href") {
            assert!(attribute.value().starts_with('#'), "{attribute:?}");
        }
    }
    assert!(shown > 50, "{shown}");
    assert!(!["url(", "@import", "@font-face"].iter().any(|it| picture.contains(it)));
    assert!(picture.len() <= 150_000, "{} bytes", picture.len());
    assert!(page("README.md").contains("](docs/demo.svg)"));
}

#[test]
fn the_record_tells_nothing_of_the_machine_that_it_was_made_on() {
    for file in ["docs/demo.cast", "docs/demo.svg"] {
        let text = page(file);
        for folder in ["/tmp", "/root", "/home", "/work", "/var"] {
            assert!(!text.contains(folder), "{file} has {folder}");
        }
    }
}
