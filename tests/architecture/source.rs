//! The modules of a crate and the dependencies between their files, read from the source text.

use std::collections::{BTreeMap, BTreeSet};

/// A file of the crate.
#[derive(Debug)]
pub(crate) struct SourceFile {
    /// The module path without `crate`, for example `["guard", "model"]`. The root's is empty.
    pub(crate) module: Vec<String>,
    /// The files on which this file depends, by their paths.
    pub(crate) dependencies: BTreeSet<String>,
}

/// The files of a crate by their paths below `src`, without modules that exist only for tests and fuzzing.
pub(crate) type Sources = BTreeMap<String, SourceFile>;

/// Reads the module tree from `lib.rs`, given the text of each file by its path below `src`.
pub(crate) fn read(files: &BTreeMap<String, String>) -> Sources {
    let mut modules: BTreeMap<Vec<String>, Module> = BTreeMap::new();
    let mut pending = vec![(Vec::new(), String::from("lib.rs"))];
    while let Some((path, file)) = pending.pop() {
        let tokens = without_test_code(&tokens(&files[&file]));
        let children = declared_modules(&tokens);
        for child in &children {
            let module: Vec<String> = path.iter().chain([child]).cloned().collect();
            let file = format!("{}.rs", module.join("/"));
            assert!(files.contains_key(&file), "module {child} has no file {file}");
            pending.push((module, file));
        }
        modules.insert(path, Module { file, tokens, children });
    }
    let known: BTreeMap<&[String], &str> =
        modules.iter().map(|(path, module)| (path.as_slice(), module.file.as_str())).collect();
    let dependencies = |path: &[String], module: &Module| {
        let paths = referenced_paths(path, module);
        let files = paths.iter().filter_map(|path| {
            let longest = (0..=path.len()).rev().find_map(|length| known.get(&path[..length]))?;
            (*longest != module.file).then(|| (*longest).to_owned())
        });
        files.collect()
    };
    modules
        .iter()
        .map(|(path, module)| {
            let file = SourceFile { module: path.clone(), dependencies: dependencies(path, module) };
            (module.file.clone(), file)
        })
        .collect()
}

struct Module {
    file: String,
    tokens: Vec<String>,
    children: Vec<String>,
}

/// Splits Rust source text into identifiers and single characters. Comments, strings and whitespace are left out.
fn tokens(text: &str) -> Vec<String> {
    let characters: Vec<char> = text.chars().collect();
    let at = |index: usize| characters.get(index).copied().unwrap_or('\0');
    let is_word = |character: char| character.is_alphanumeric() || character == '_';
    let mut tokens = Vec::new();
    let mut index = 0;
    while index < characters.len() {
        let start = index;
        match (at(index), at(index + 1)) {
            ('/', '/') => {
                while index < characters.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            ('/', '*') => {
                while index < characters.len() && (at(index), at(index + 1)) != ('*', '/') {
                    index += 1;
                }
                index += 2;
            }
            ('r', '"' | '#') if raw_string_hashes(&characters[index + 1..]).is_some() => {
                let hashes = raw_string_hashes(&characters[index + 1..]).unwrap_or_default();
                let end: String = format!("\"{}", "#".repeat(hashes));
                index += hashes + 2;
                while index < characters.len()
                    && !end.chars().enumerate().all(|(offset, character)| at(index + offset) == character)
                {
                    index += 1;
                }
                index += end.len();
            }
            ('"', _) => {
                index += 1;
                while index < characters.len() && at(index) != '"' {
                    index += if at(index) == '\\' { 2 } else { 1 };
                }
                index += 1;
            }
            // A character, but not a lifetime.
            ('\'', '\\') => {
                index += 3;
                while index < characters.len() && at(index) != '\'' {
                    index += 1;
                }
                index += 1;
            }
            ('\'', _) if at(index + 2) == '\'' => index += 3,
            (character, _) if character.is_whitespace() => index += 1,
            (character, _) if is_word(character) => {
                while is_word(at(index)) {
                    index += 1;
                }
                tokens.push(characters[start..index].iter().collect());
            }
            (character, _) => {
                index += 1;
                tokens.push(character.to_string());
            }
        }
    }
    tokens
}

/// Returns the number of `#` before the quote of a raw string.
fn raw_string_hashes(rest: &[char]) -> Option<usize> {
    let hashes = rest.iter().take_while(|character| **character == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some(hashes)
}

/// Leaves out items with an attribute such as `#[cfg(test)]` or `#[cfg(any(test, fuzzing))]`.
fn without_test_code(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        if tokens[index..].starts_with(&["#", "[", "cfg"].map(String::from)) {
            let end = closing(tokens, index + 1);
            let attribute = &tokens[index..end];
            let names = |name: &str| attribute.iter().any(|token| token == name);
            if (names("test") || names("fuzzing")) && !names("not") {
                index = end_of_item(tokens, end);
                continue;
            }
        }
        kept.push(tokens[index].clone());
        index += 1;
    }
    kept
}

/// Returns the index behind the bracket that closes the one at `open`.
fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return index + 1;
        }
    }
    tokens.len()
}

/// Returns the index behind the item at `start`: behind its semicolon or its block.
fn end_of_item(tokens: &[String], start: usize) -> usize {
    let is_use = tokens[start..].iter().take(8).any(|token| token == "use");
    let mut index = start;
    while index < tokens.len() {
        match tokens[index].as_str() {
            ";" => return index + 1,
            "{" if !is_use => return closing(tokens, index),
            "(" | "[" | "{" => index = closing(tokens, index),
            _ => index += 1,
        }
    }
    index
}

/// Returns the names of `mod NAME;` declarations.
fn declared_modules(tokens: &[String]) -> Vec<String> {
    let declarations = tokens.windows(3).filter(|window| window[0] == "mod" && window[2] == ";");
    declarations.map(|window| window[1].clone()).collect()
}

/// Returns the absolute paths to which a module refers, without `crate`: imports, and qualified paths in expressions
/// that begin with `crate`, `self`, `super` or a child module.
fn referenced_paths(path: &[String], module: &Module) -> Vec<Vec<String>> {
    let tokens = &module.tokens;
    let mut paths = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        if tokens[index..].starts_with(&["pub", "(", "in"].map(String::from)) {
            index = closing(tokens, index + 1);
            continue;
        }
        let is_path = is_separator(tokens, index + 1) && (index == 0 || !is_separator_before(tokens, index));
        let base = match tokens[index].as_str() {
            "crate" => Some(Vec::new()),
            "self" => Some(path.to_vec()),
            "super" => Some(path[..path.len().saturating_sub(1)].to_vec()),
            name if module.children.iter().any(|child| child == name) => {
                Some(path.iter().cloned().chain([name.to_owned()]).collect())
            }
            _ => None,
        };
        match base {
            Some(base) if is_path => index = read_path(tokens, index + 3, base, &mut paths),
            _ => index += 1,
        }
    }
    paths
}

fn is_separator(tokens: &[String], index: usize) -> bool {
    tokens[index.min(tokens.len())..].starts_with(&[":", ":"].map(String::from))
}

fn is_separator_before(tokens: &[String], index: usize) -> bool {
    index >= 2 && is_separator(tokens, index - 2)
}

/// Reads the path or the tree of imports at `index`, which continues `base`. Returns the index behind it.
fn read_path(
    tokens: &[String],
    mut index: usize,
    mut base: Vec<String>,
    paths: &mut Vec<Vec<String>>,
) -> usize {
    loop {
        match tokens.get(index).map(String::as_str) {
            Some("{") => {
                let end = closing(tokens, index);
                index += 1;
                while index < end - 1 {
                    index = read_path(tokens, index, base.clone(), paths);
                    // Behind an alias and the comma.
                    while index < end - 1 && tokens[index] != "," {
                        index += 1;
                    }
                    index += 1;
                }
                return end;
            }
            Some("super") => drop(base.pop()),
            Some("self" | "*") | None => {}
            Some(name) => base.push(name.to_owned()),
        }
        if !is_separator(tokens, index + 1) {
            paths.push(base);
            return index + 1;
        }
        index += 3;
    }
}
