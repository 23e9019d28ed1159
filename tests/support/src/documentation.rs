//! The commands in the documentation: lines after `$ ` in blocks marked `console`, in the order of the page, and
//! commands
//! that a sentence names.
//!
//! A comment above a block marks it: `<!-- not run: REASON -->`, `<!-- run: denied -->` if the guard must deny the
//! command,
//! or `<!-- run: answered -->` if `kubectl etcd-guard check` may answer either way. A block without a mark is run and must
//! succeed.
//! A block or a script also runs a command in a sentence, or its paragraph starts with `<!-- not run: REASON -->`.

use std::{collections::BTreeMap, fs, path::PathBuf};

use crate::project;

/// The pages with commands, in the order in which their commands run: the guard of the README serves all pages up to the
/// page about uninstalling, which removes it.
pub const PAGES: [&str; 25] = [
    "README.md",
    "docs/tutorial.md",
    "docs/install.md",
    "docs/reasons.md",
    "docs/alerts.md",
    "docs/recipes.md",
    "docs/break-glass.md",
    "docs/choose-a-policy.md",
    "docs/drains.md",
    "docs/network-policies.md",
    "docs/tls-and-auth.md",
    "docs/platforms.md",
    "docs/cli.md",
    "docs/security.md",
    "docs/configuration.md",
    "docs/injection.md",
    "docs/conformance.md",
    "docs/upgrade.md",
    "docs/monitoring.md",
    "docs/development/contributing.md",
    "docs/development/releasing.md",
    "docs/development/testing.md",
    "docs/uninstall.md",
    "deploy/chart/etcd-guard/README.md",
    "fuzz/README.md",
];

/// How the test treats a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Run, and expected to succeed.
    Run,
    /// Run, and denied by the guard.
    Denied,
    /// Run, and answered by the guard with an approval or a denial.
    Answered,
    /// Not run, for this reason.
    NotRun(String),
    /// An unknown mark.
    Unknown(String),
}

/// A block of commands.
#[derive(Clone, Debug)]
pub struct Block {
    /// The page and the line where it begins.
    pub place: String,
    /// The anchor of the heading above it.
    pub section: String,
    /// The word after the fence.
    pub language: String,
    /// The mark of the block.
    pub mark: Mark,
    /// The commands after `$ `, with continued lines joined.
    pub commands: Vec<String>,
    /// All of its lines.
    pub text: String,
}

/// A command in a sentence.
#[derive(Clone, Debug)]
pub struct Mention {
    /// The page and the line where its paragraph begins.
    pub place: String,
    /// The command as the sentence names it.
    pub command: String,
    /// The mark of its paragraph.
    pub mark: Mark,
}

/// A code span that starts with one of these programs and has an argument is a command.
const PROGRAMS: [&str; 9] =
    ["cargo", "curl", "docker", "etcd-guard", "etcdctl", "etcdutl", "helm", "kubectl", "minikube"];

impl Block {
    /// Whether its commands are run on a node.
    pub fn is_run(&self) -> bool {
        matches!(self.mark, Mark::Run | Mark::Denied | Mark::Answered)
    }
}

/// Returns the root of the project.
pub fn root() -> PathBuf {
    project::path("")
}

/// Returns the text of a page.
pub fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Returns the anchors of a page's headings in GitHub's format.
pub fn anchors(page: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let numbered = |(_, heading): (usize, &str)| {
        let anchor = anchor(heading);
        let count = seen.entry(anchor.clone()).or_default();
        *count += 1;
        if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
    };
    prose(page).filter_map(|(number, line)| Some((number, heading(line)?))).map(numbered).collect()
}

/// Returns the lines outside of fences, with their numbers.
pub fn prose(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_inside = false;
    (1..).zip(page.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_inside ^= is_fence;
        !is_inside && !is_fence
    })
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    (text.len() < line.len()).then(|| text.strip_prefix(' ')).flatten()
}

fn anchor(heading: &str) -> String {
    let kept = heading
        .chars()
        .filter(|character| character.is_alphanumeric() || matches!(character, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase)
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

/// Returns the blocks of a page.
pub fn blocks(name: &str) -> Vec<Block> {
    let page = page(name);
    let mut blocks = Vec::new();
    let (mut section, mut before) = (String::new(), "");
    let mut lines = (1_usize..).zip(page.lines());
    while let Some((number, line)) = lines.next() {
        let trimmed = line.trim();
        if let Some(language) = trimmed.strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| line.trim() != "```");
            let inside: Vec<&str> = inside.map(|line| line.get(indent..).unwrap_or_default()).collect();
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

/// Returns the commands in a page's sentences.
pub fn mentions(name: &str) -> Vec<Mention> {
    let page = page(name);
    let mut paragraphs: Vec<(usize, Vec<&str>)> = Vec::new();
    for (number, line) in prose(&page).filter(|(_, line)| !line.trim().is_empty()) {
        match paragraphs.last_mut() {
            Some((first, lines)) if *first + lines.len() == number => lines.push(line),
            _ => paragraphs.push((number, vec![line])),
        }
    }
    let paragraph_mentions = |(number, lines): (usize, Vec<&str>)| {
        let text = lines.join(" ");
        let spans = text.split('`').skip(1).step_by(2);
        let commands: Vec<String> =
            spans.map(|span| span.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let mention =
            move |command| Mention { place: format!("{name}:{number}"), command, mark: mark(lines[0]) };
        commands.into_iter().filter(|command| is_command(command)).map(mention).collect::<Vec<_>>()
    };
    paragraphs.into_iter().flat_map(paragraph_mentions).collect()
}

fn is_command(span: &str) -> bool {
    span.starts_with("scripts/")
        || span.split_once(' ').is_some_and(|(program, _)| PROGRAMS.contains(&program))
}

fn mark(before: &str) -> Mark {
    let Some(comment) = before.strip_prefix("<!--").and_then(|text| text.strip_suffix("-->")) else {
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
    let mut continues = false;
    for line in lines {
        if let Some(command) = line.strip_prefix("$ ") {
            commands.push(command.to_owned());
        } else if continues && let Some(command) = commands.last_mut() {
            command.push('\n');
            command.push_str(line);
        } else {
            continue;
        }
        continues = line.ends_with('\\');
    }
    commands
}
