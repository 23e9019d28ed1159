//! The commands in the documentation: what stands after `$ ` in blocks marked `console`, in the order of the page, and what is
//! named in a sentence.
//!
//! A mark in a comment above a block says what is to become of it: `<!-- not run: REASON -->`, `<!-- run: denied -->` where the
//! guard is to say no, or `<!-- run: answered -->` where `etcd-guard check` may say either. Without a mark it is run, and has to
//! succeed. A command in a sentence stands in a block as well, or its paragraph begins with `<!-- not run: REASON -->`.

use std::{collections::HashMap, fs, path::PathBuf};

/// The pages whose commands are run, in the order in which a new user meets them.
pub const PAGES: [&str; 4] = ["README.md", "docs/runbook.md", "docs/install.md", "docs/monitoring.md"];

/// What is to become of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    Run,
    /// Run, and denied by the guard.
    Denied,
    /// Run, and answered by the guard, whichever way.
    Answered,
    NotRun(String),
    /// No mark that is known.
    Unknown(String),
}

/// A block of commands.
#[derive(Clone, Debug)]
pub struct Block {
    /// The page and the line where it begins.
    pub place: String,
    /// The anchor of the heading that it stands under.
    pub section: String,
    /// The word after the fence.
    pub language: String,
    pub mark: Mark,
    /// What stands after `$ `, continued lines put together.
    pub commands: Vec<String>,
    /// All of its lines.
    pub text: String,
}

/// A command in a sentence.
#[derive(Clone, Debug)]
pub struct Mention {
    /// The page and the line where its paragraph begins.
    pub place: String,
    pub command: String,
    /// Its paragraph's.
    pub mark: Mark,
}

/// Programs of which a name with something behind it is a command.
const PROGRAMS: [&str; 9] =
    ["cargo", "curl", "docker", "etcd-guard", "etcdctl", "etcdutl", "helm", "kubectl", "minikube"];

impl Block {
    /// Whether its commands are run on a node.
    pub fn is_run(&self) -> bool {
        matches!(self.mark, Mark::Run | Mark::Denied | Mark::Answered)
    }
}

pub fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The anchors of a page's headings, as GitHub makes them.
pub fn anchors(page: &str) -> Vec<String> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    let numbered = |(_, heading): (usize, &str)| {
        let anchor = anchor(heading);
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    };
    prose(page).filter_map(|(number, line)| Some((number, heading(line)?))).map(numbered).collect()
}

/// The lines outside of fences, with their numbers.
pub fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_inside = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let turns = line.trim_start().starts_with("```");
        is_inside ^= turns;
        !is_inside && !turns
    })
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
}

fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// The blocks of a page.
pub fn blocks(name: &str) -> Vec<Block> {
    let page = page(name);
    let mut blocks = Vec::new();
    let (mut section, mut before) = (String::new(), "");
    let mut lines = (1_usize..).zip(page.lines());
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim();
        if let Some(language) = trimmed.strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let inside = lines.by_ref().map(|(_, it)| it).take_while(|it| it.trim() != "```");
            let inside: Vec<&str> = inside.map(|it| it.get(indent..).unwrap_or_default()).collect();
            blocks.push(Block {
                place: format!("{name}:{number}"),
                section: section.clone(),
                language: language.to_owned(),
                mark: mark(before),
                commands: commands(&inside),
                text: inside.join("\n"),
            });
        } else if let Some(heading) = heading(line) {
            section = anchor(heading);
        }
        if !trimmed.is_empty() {
            before = trimmed;
        }
    }
    blocks
}

/// The commands in a page's sentences.
pub fn mentions(name: &str) -> Vec<Mention> {
    let page = page(name);
    let mut paragraphs: Vec<(usize, Vec<&str>)> = Vec::new();
    for (number, line) in prose(&page).filter(|(_, line)| !line.trim().is_empty()) {
        match paragraphs.last_mut() {
            Some((first, lines)) if *first + lines.len() == number => lines.push(line),
            _ => paragraphs.push((number, vec![line])),
        }
    }
    let mentions_of = |(number, lines): (usize, Vec<&str>)| {
        let text = lines.join(" ");
        let spans = text.split('`').skip(1).step_by(2);
        let commands: Vec<String> =
            spans.map(|it| it.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let mention =
            move |command| Mention { place: format!("{name}:{number}"), command, mark: mark(lines[0]) };
        commands.into_iter().filter(|it| is_command(it)).map(mention).collect::<Vec<_>>()
    };
    paragraphs.into_iter().flat_map(mentions_of).collect()
}

fn is_command(span: &str) -> bool {
    span.starts_with("scripts/")
        || span.split_once(' ').is_some_and(|(program, _)| PROGRAMS.contains(&program))
}

fn mark(before: &str) -> Mark {
    let Some(comment) = before.strip_prefix("<!--").and_then(|it| it.strip_suffix("-->")) else {
        return Mark::Run;
    };
    match comment.trim().split_once(": ") {
        Some(("run", "denied")) => Mark::Denied,
        Some(("run", "answered")) => Mark::Answered,
        Some(("not run", reason)) => Mark::NotRun(reason.to_owned()),
        _ => Mark::Unknown(comment.trim().to_owned()),
    }
}

fn commands(lines: &[&str]) -> Vec<String> {
    let mut commands: Vec<String> = Vec::new();
    let mut goes_on = false;
    for line in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(command.to_owned());
        } else if goes_on && let Some(command) = commands.last_mut() {
            command.push('\n');
            command.push_str(line);
        } else {
            continue;
        }
        goes_on = line.ends_with('\\');
    }
    commands
}
