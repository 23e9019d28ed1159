//! The rules for the structure of a crate, and the check of its files against them.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Sources, read};

/// Maximum number of files beside each other in a folder.
const MAX_FILES: usize = 14;

/// Maximum number of lines of a file.
const MAX_LINES: usize = 450;

/// The modules on which each module of one level may depend. Each module of the level must be listed in `allowed` or
/// `unrestricted`.
pub(crate) struct Layers {
    /// The parent of these modules, for example `guard`. Empty for the top modules.
    pub(crate) parent: &'static str,
    /// Modules with their allowed dependencies on modules of the same level.
    pub(crate) allowed: &'static [(&'static str, &'static [&'static str])],
    /// Modules that may depend on every module.
    pub(crate) unrestricted: &'static [&'static str],
}

/// Returns one line for each violation, sorted.
pub(crate) fn violations(files: &BTreeMap<String, String>, layers: &[Layers]) -> Vec<String> {
    let sources = read(files);
    let mut found: Vec<String> = layers.iter().flat_map(|layers| wrong_imports(&sources, layers)).collect();
    found.extend(cycles(&sources));
    found.extend(full_folders(files));
    let long = files.iter().map(|(path, text)| (path, text.lines().count()));
    let long = long.filter(|(_, lines)| *lines > MAX_LINES);
    found.extend(long.map(|(path, _)| format!("{path} has more than {MAX_LINES} lines")));
    found.sort();
    found
}

/// Reports each import of a module that the layers do not allow, and each module that is not listed in a layer.
fn wrong_imports(sources: &Sources, layers: &Layers) -> Vec<String> {
    let parent: Vec<&str> = layers.parent.split('/').filter(|part| !part.is_empty()).collect();
    let child = |module: &[String]| {
        let is_below = module.len() > parent.len() && module.iter().zip(&parent).all(|(a, b)| a == b);
        is_below.then(|| module[parent.len()].clone())
    };
    let mut found = BTreeSet::new();
    for (path, file) in sources {
        let Some(from) = child(&file.module) else { continue };
        let Some((_, allowed)) = layers.allowed.iter().find(|(name, _)| *name == from) else {
            let is_root = file.module.len() == parent.len() + 1;
            if is_root && !layers.unrestricted.contains(&from.as_str()) {
                found.insert(format!("{path} is not listed in a layer"));
            }
            continue;
        };
        for dependency in &file.dependencies {
            let Some(target) = sources.get(dependency) else { continue };
            match child(&target.module) {
                Some(to) if to == from || allowed.contains(&to.as_str()) => {}
                // Below the top level, dependencies on other parents are the concern of another level.
                None if target.module.iter().ne(&parent) => {}
                _ => drop(found.insert(format!("{path} must not import {dependency}"))),
            }
        }
    }
    found.into_iter().collect()
}

/// Reports each group of files that depend on each other in a cycle.
fn cycles(sources: &Sources) -> Vec<String> {
    let reachable: BTreeMap<&str, BTreeSet<&str>> =
        sources.keys().map(|path| (path.as_str(), reachable_from(sources, path))).collect();
    let mut groups: BTreeSet<Vec<&str>> = BTreeSet::new();
    for (path, targets) in &reachable {
        if targets.contains(path) {
            let members = targets.iter().filter(|target| reachable[**target].contains(path));
            groups.insert(members.copied().collect());
        }
    }
    groups.iter().map(|group| format!("import cycle: {}", group.join(", "))).collect()
}

fn reachable_from<'a>(sources: &'a Sources, path: &str) -> BTreeSet<&'a str> {
    let mut reachable = BTreeSet::new();
    let mut pending: Vec<&str> = sources[path].dependencies.iter().map(String::as_str).collect();
    while let Some(next) = pending.pop() {
        if reachable.insert(next) {
            pending.extend(sources[next].dependencies.iter().map(String::as_str));
        }
    }
    reachable
}

/// Reports folders with too many files.
fn full_folders(files: &BTreeMap<String, String>) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for path in files.keys() {
        // The limit does not concern the top modules in `src` itself.
        if let Some((folder, _)) = path.rsplit_once('/') {
            *counts.entry(folder).or_default() += 1;
        }
    }
    let full = counts.into_iter().filter(|(_, count)| *count > MAX_FILES);
    full.map(|(folder, _)| format!("folder {folder} has more than {MAX_FILES} files")).collect()
}
