//! Checks of the documentation that need no cluster: links have targets, alerts and reasons have sections, and every
//! command is run by `tests/docs_node/main.rs` or marked with the reason why it is not.

// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use etcd_guard_core::{
    documentation::{DEFAULT_URL, Manual},
    reason::Reason,
};
use etcd_guard_plugin::outputs::doctor_sections;
use serde_json::Value;
use test_support::documentation::{Mark, PAGES, anchors, blocks, mentions, page, prose, root};

/// All pages: the README, the changelog, and the files under docs/.
fn pages() -> Vec<String> {
    let mut pages = vec![String::from("README.md"), String::from("CHANGELOG.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|item| item == "md") {
                pages.push(path.strip_prefix(root()).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    pages.sort();
    pages
}

/// The targets of the links and images in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|item| item.split(')').next())
}

/// A path with `.` and `..` resolved.
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
fn links_have_existing_targets() {
    let mut links = 0;
    for name in pages() {
        // The text of a link may span two lines.
        let text = page(&name);
        for (number, line) in prose(&text) {
            for target in targets(line).filter(|target| !target.contains("://")) {
                links += 1;
                let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
                let path = match file {
                    "" => root().join(&name),
                    file => plain(&root().join(&name).parent().unwrap().join(file)),
                };
                assert!(path.exists(), "{name}:{number}: {target} does not exist");
                if !anchor.is_empty() {
                    let there = anchors(&fs::read_to_string(&path).unwrap());
                    assert!(
                        there.iter().any(|item| item == anchor),
                        "{name}:{number}: {target}: no such heading"
                    );
                }
            }
        }
    }
    assert!(links > 50, "{links} links were found");
}

/// mdBook leaves out pages that the summary does not list.
#[test]
fn every_page_is_in_the_book() {
    let summary = page("docs/SUMMARY.md");
    let listed: Vec<String> =
        summary.lines().flat_map(targets).map(|target| format!("docs/{target}")).collect();
    let unique: BTreeSet<&String> = listed.iter().collect();
    assert_eq!(unique.len(), listed.len(), "docs/SUMMARY.md lists a page twice");
    let found = pages();
    let found = found.iter().filter(|name| name.starts_with("docs/") && *name != "docs/SUMMARY.md");
    assert_eq!(unique, found.collect(), "docs/SUMMARY.md, and the pages in docs");
}

/// During an incident, the section must suffice without following links.
#[test]
fn every_reason_has_a_section_and_denials_have_commands() {
    let text = page("docs/reasons.md");
    let (_, after) = text.split_once("\n## Denied\n").unwrap();
    let (denied, approved) = after.split_once("\n## Approved\n").unwrap();
    let (denied, approved) = (anchors(denied), anchors(approved));
    let blocks = blocks("docs/reasons.md");
    for reason in Reason::ALL {
        let anchor = reason.as_str().to_lowercase();
        let sections = if reason.allows() { &approved } else { &denied };
        assert!(sections.contains(&anchor), "docs/reasons.md has no section {reason} in the expected part");
        let mut own_blocks = blocks.iter().filter(|item| item.section == anchor);
        assert!(
            reason.allows() || own_blocks.any(|block| !block.commands.is_empty()),
            "docs/reasons.md#{anchor} has no command"
        );
    }
}

/// The address in a denial opens the section of its reason, and that in a line of `doctor` the section of its check: mdBook
/// gives a heading its text in lower case as id.
#[test]
fn every_reason_and_every_check_leads_to_its_section() {
    let manual = Manual::default();
    let mut seen = BTreeSet::new();
    for reason in Reason::ALL {
        let url = manual.reason(*reason);
        assert_leads_to_section(&url);
        assert!(seen.insert(url.clone()), "{url} is the address of two reasons");
    }
    let sections = doctor_sections();
    assert!(sections.len() > 15, "{sections:?}");
    for (page, anchor) in sections {
        assert_leads_to_section(&manual.section(page, anchor));
    }
}

#[track_caller]
fn assert_leads_to_section(url: &str) {
    let path = url.strip_prefix(&format!("{DEFAULT_URL}/")).unwrap();
    let (file, anchor) = path.split_once(".html#").unwrap();
    let name = format!("docs/{file}.md");
    assert!(page("docs/SUMMARY.md").contains(&format!("({file}.md)")), "{name} is not in the manual");
    assert!(anchors(&page(&name)).iter().any(|known| known == anchor), "{url}: {name} has no such section");
}

#[test]
fn every_alert_links_to_its_section_with_commands() {
    let file = page("deploy/components/monitoring/prometheus-rule.yaml");
    let rule: Value = serde_saphyr::from_str(&file).unwrap();
    let sections = anchors(&page("docs/alerts.md"));
    let blocks = blocks("docs/alerts.md");
    let mut alerts = BTreeSet::new();
    for rule in
        rule["spec"]["groups"].as_array().unwrap().iter().flat_map(|item| item["rules"].as_array().unwrap())
    {
        let anchor = rule["alert"].as_str().unwrap().to_lowercase();
        assert_eq!(rule["annotations"]["runbook_url"], format!("docs/alerts.md#{anchor}"));
        let mut own_blocks = blocks.iter().filter(|item| item.section == anchor);
        assert!(own_blocks.any(|block| !block.commands.is_empty()), "docs/alerts.md#{anchor} has no command");
        alerts.insert(anchor);
    }
    let documented: BTreeSet<_> = sections.into_iter().filter(|item| item.starts_with("etcdguard")).collect();
    assert_eq!(documented, alerts, "the sections match the defined alerts");
}

/// Prevents adding a command that no test runs: commands without a mark are run.
#[test]
fn every_command_is_run_or_excused() {
    let mut run = 0;
    for block in PAGES.iter().flat_map(|name| blocks(name)) {
        let place = &block.place;
        let looks_typed =
            block.text.lines().any(|item| item.trim_start().starts_with("$ ")) || !block.commands.is_empty();
        match block.language.as_str() {
            "console" => assert!(!block.commands.is_empty(), "{place}: a command begins with `$ `"),
            "sh" | "bash" | "shell" | "" => {
                panic!("{place}: commands belong in a `console` block, after `$ `")
            }
            _ => assert!(!looks_typed, "{place}: commands belong in a `console` block"),
        }
        match &block.mark {
            Mark::Run | Mark::Denied | Mark::Answered => run += block.commands.len(),
            Mark::NotRun(reason) => assert_reason(place, reason),
            Mark::Unknown(mark) => {
                panic!(
                    "{place}: {mark:?} is not a valid mark; use `not run: REASON`, `run: denied` or `run: answered`"
                )
            }
        }
    }
    assert!(run > 60, "{run} commands are run");
}

/// A page with commands that is missing from the list would be checked by no test.
#[test]
fn every_page_with_commands_is_listed() {
    let mut found = pages();
    found.extend(["CONTRIBUTING.md", "SECURITY.md"].map(String::from));
    for name in found.iter().filter(|name| !PAGES.contains(&name.as_str())) {
        for block in blocks(name) {
            assert!(block.commands.is_empty(), "{}: add {name} to PAGES", block.place);
        }
        let indented = page(name).lines().position(|line| line.starts_with("    $ "));
        assert_eq!(indented, None, "{name}: commands belong in a `console` block");
    }
}

/// An operator decides by these four lines whether to run a recipe.
#[test]
fn every_recipe_states_output_duration_risk_and_rollback() {
    let text = page("docs/recipes.md");
    let (_, recipes) = text.split_once("\n## Recipes\n").unwrap();
    let recipes: Vec<&str> = recipes.split("\n### ").skip(1).collect();
    assert!(recipes.len() >= 9, "{} recipes", recipes.len());
    for recipe in recipes {
        let title = recipe.lines().next().unwrap();
        for field in ["Expected output", "Duration", "Risk", "Rollback"] {
            assert!(recipe.contains(&format!("- **{field}:** ")), "{title}: no {field}");
        }
    }
}

/// `date -d` is an extension of GNU, and fails on macOS.
#[test]
fn commands_use_the_date_of_posix() {
    for block in PAGES.iter().flat_map(|name| blocks(name)) {
        for command in &block.commands {
            let words: Vec<&str> = command.split_whitespace().collect();
            let is_extension = words
                .windows(2)
                .any(|pair| pair[0].ends_with("date") && pair[1].starts_with('-') && pair[1] != "-u");
            assert!(!is_extension && !command.contains("date -u -d"), "{}: {command}", block.place);
        }
    }
}

#[track_caller]
fn assert_reason(place: &str, reason: &str) {
    assert!(reason.len() > 20, "{place}: {reason:?} is too short for a reason");
    for file in
        reason.split([' ', ';', ',']).filter(|item| item.starts_with("tests/") || item.starts_with("src/"))
    {
        assert!(root().join(file).exists(), "{place}: {file} does not exist");
    }
}

/// The commands that blocks of the pages, scripts and the scripts of tests run, as words.
fn run_commands() -> Vec<Vec<String>> {
    let mut texts: Vec<String> =
        PAGES.iter().flat_map(|name| blocks(name)).flat_map(|item| item.commands).collect();
    let mut folders = ["scripts", "tests", ".github"].map(|name| root().join(name)).to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_none_or(|item| item == "sh" || item == "yml" || item == "yaml")
                && let Ok(script) = fs::read_to_string(&path)
            {
                let joined = script.replace("\\\n", " ");
                let lines = joined.lines().filter(|line| !line.trim_start().starts_with('#'));
                texts.extend(lines.map(String::from));
            }
        }
    }
    let is_separator = |item: char| item.is_whitespace() || "\"'();|".contains(item);
    texts.iter().map(|text| text.split(is_separator).map(String::from).collect()).collect()
}

/// Whether the script exists and its text contains each option and subcommand, or the alias of cargo is defined.
fn is_own_command(command: &str) -> bool {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    if program == "cargo" {
        let aliases = page(".cargo/config.toml");
        return words.next().is_some_and(|name| aliases.contains(&format!("\n{name} = ")));
    }
    if !program.starts_with("scripts/") || !root().join(program).is_file() {
        return false;
    }
    let script = page(program);
    let known: BTreeSet<&str> =
        script.split(|item: char| !item.is_ascii_alphanumeric() && !"-_".contains(item)).collect();
    let is_value = |word: &str| !word.starts_with(|item: char| item == '-' || item.is_ascii_lowercase());
    words.all(|word| is_value(word) || known.contains(word))
}

/// Whether a run command has all words of this command in their order. It may have more arguments. Words in capitals
/// represent any argument.
fn is_run(command: &str, run: &[Vec<String>]) -> bool {
    let is_placeholder =
        |word: &str| word.chars().all(|item| item.is_ascii_uppercase() || "/.".contains(item));
    let words: Vec<&str> = command.split(' ').filter(|word| !is_placeholder(word)).collect();
    run.iter().any(|line| {
        let mut rest = line.iter();
        words.iter().all(|word| rest.any(|item| item == word || item.ends_with(&format!("/{word}"))))
    })
}

/// Users type the commands in sentences as well as those in blocks.
#[test]
fn commands_in_prose_are_run_or_excused() {
    let run = run_commands();
    let mut names = pages();
    // Decisions and the changelog are records.
    names.retain(|name| !name.starts_with("docs/decisions/") && name != "CHANGELOG.md");
    let others = ["CONTRIBUTING.md", "SECURITY.md", "deploy/chart/etcd-guard/README.md"];
    names.extend(others.map(String::from));
    let (mut mentioned, mut excused, mut missing) = (0, 0, Vec::new());
    for mention in names.iter().flat_map(|name| mentions(name)) {
        mentioned += 1;
        let (place, command) = (&mention.place, &mention.command);
        match &mention.mark {
            Mark::NotRun(reason) => {
                excused += 1;
                assert_reason(place, reason);
            }
            Mark::Run if is_own_command(command) || is_run(command, &run) => {}
            Mark::Run => missing.push(format!("{place}: {command}")),
            mark => panic!("{place}: {mark:?} is valid only for blocks"),
        }
    }
    assert!(
        missing.is_empty(),
        "no block or script runs these commands, and their paragraphs do not begin with `not run: REASON`:\n{}",
        missing.join("\n")
    );
    assert!(
        mentioned > 80 && excused * 2 < mentioned,
        "{mentioned} commands in sentences, {excused} not run"
    );
    println!("{mentioned} commands in sentences, {excused} not run");
}

/// The recorded terminal output without formatting codes.
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

/// The part of a command that is the same in every run: up to the first word that names a pod, a node or a member.
fn stable_part(command: &str) -> String {
    let words =
        command.split(' ').take_while(|word| *word != "node" && !word.contains(|c: char| c.is_ascii_digit()));
    words.collect::<Vec<_>>().join(" ")
}

/// After a change of the demo script, repeat the recording with `scripts/record`.
#[test]
fn recording_matches_demo_script() {
    let scenes = page("scripts/lib/demo/scenario.sh") + &page("scripts/lib/demo/handover.sh");
    let script = scenes.clone() + &page("scripts/lib/demo/deploy.sh");
    let recorded = recorded();
    let typed: Vec<&str> = recorded.lines().filter_map(|item| item.strip_prefix("$ ")).collect();
    assert!(typed.len() >= 10, "{typed:?}");
    for command in typed {
        let stable = stable_part(command);
        assert!(
            stable.contains(' ') && script.contains(&stable),
            "no {stable:?} in the demo script: {command}"
        );
    }
    let headings = scenes.lines().filter_map(|item| item.trim().strip_prefix("heading "));
    // The first heading precedes a table that is too wide for the README.
    for heading in headings.skip(1) {
        let words = heading.trim_matches(['\'', '"']).split([',', '$']).next().unwrap();
        assert!(recorded.contains(&format!("== {words}")), "no heading {words:?} in the recording");
    }
    assert!(recorded.contains(" 0 differences"), "{recorded}");
}

#[test]
fn demo_picture_matches_recording_and_is_self_contained() {
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
            assert!(recorded.contains(text.trim()), "{text:?} is not in the recording");
        }
        for attribute in node.attributes().filter(|item| item.name() == "href") {
            assert!(attribute.value().starts_with('#'), "{attribute:?}");
        }
    }
    assert!(shown > 50, "{shown}");
    assert!(!["url(", "@import", "@font-face"].iter().any(|part| picture.contains(part)));
    assert!(picture.len() <= 150_000, "{} bytes", picture.len());
    assert!(page("README.md").contains("](docs/demo.svg)"));
}

#[test]
fn recording_has_no_local_paths() {
    for file in ["docs/demo.cast", "docs/demo.svg", "docs/dashboard.svg"] {
        let text = page(file);
        for folder in ["/tmp", "/root", "/home", "/work", "/var"] {
            assert!(!text.contains(folder), "{file} has {folder}");
        }
    }
}
