//! The licences of all crates that a program contains, for the image and the archives.
//!
//! The crates are the normal dependencies of the program for its target, from `cargo metadata`. The texts are the files in the
//! sources that Cargo has downloaded for the build.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::Value;

/// Beginnings of the names of files with licences and notices, in capital letters.
const FILE_NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];

/// The licence of the file LICENSE of this project, for crates whose package contains no file.
const OWN_LICENCE: &str = "Apache-2.0";

const LINE: &str = "================================================================================";

const INTRODUCTION: &str = "Third-party software in etcd-guard\n\n\
     The program contains the crates below. It also contains the Rust standard library (MIT OR Apache-2.0,\n\
     https://github.com/rust-lang/rust) and, as a static program for Linux, the GNU C Library (LGPL-2.1-or-later,\n\
     https://sourceware.org/glibc). The texts of the licences and the notices follow after the list.\n\n";

/// Prints the licences of all crates that a program contains.
#[derive(Args)]
pub(crate) struct Options {
    /// The target of the program, such as x86_64-unknown-linux-gnu.
    #[arg(long)]
    target: String,
    /// The manifest of the program's package.
    #[arg(long, default_value = "Cargo.toml")]
    manifest_path: PathBuf,
}

/// A crate that the program contains.
#[derive(Debug, PartialEq, Eq)]
struct Package {
    /// Name and version.
    name: String,
    /// SPDX expression.
    licence: String,
    repository: String,
    /// Texts by the names of their files.
    texts: Vec<(String, String)>,
}

impl Options {
    pub(crate) fn run(&self) -> Result<()> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["metadata", "--locked", "--format-version", "1", "--filter-platform", &self.target]);
        let output = command.arg("--manifest-path").arg(&self.manifest_path).output();
        let output = output.context("cannot run cargo metadata")?;
        ensure!(
            output.status.success(),
            "cargo metadata failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let metadata: Value = serde_json::from_slice(&output.stdout)?;
        let mut packages = packages(&metadata)?;
        let root = metadata.get("workspace_root").and_then(Value::as_str).context("no workspace root")?;
        let own = Path::new(root).join("LICENSE");
        let own = fs::read_to_string(&own).with_context(|| format!("cannot read {}", own.display()))?;
        complete(&mut packages, &own)?;
        print!("{}", document(&packages));
        Ok(())
    }
}

/// Returns the normal dependencies of the root package, direct and indirect, by name and version, without those of this workspace.
fn packages(metadata: &Value) -> Result<Vec<Package>> {
    let by_id = |list: &'static str| -> BTreeMap<&str, &Value> {
        let items = metadata.pointer(list).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| Some((item.get("id")?.as_str()?, item))).collect()
    };
    let (nodes, all) = (by_id("/resolve/nodes"), by_id("/packages"));
    let root = metadata.pointer("/resolve/root").and_then(Value::as_str).context("no root package")?;
    let mut found = BTreeSet::new();
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        let node = nodes.get(id).with_context(|| format!("no dependencies of {id}"))?;
        for dependency in list(node, "deps") {
            let id = dependency.get("pkg").and_then(Value::as_str).context("a dependency has no id")?;
            let is_normal = |kind: &Value| kind.get("kind").is_some_and(Value::is_null);
            if list(dependency, "dep_kinds").any(is_normal) && found.insert(id) {
                open.push(id);
            }
        }
    }
    let mut packages = Vec::new();
    for id in found {
        let package = all.get(id).with_context(|| format!("no package {id}"))?;
        // Packages of the workspace come from no registry.
        if package.get("source").is_some_and(Value::is_null) {
            continue;
        }
        let text = |field: &str| package.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let manifest = text("manifest_path");
        let folder = Path::new(&manifest).parent().context("a manifest has no folder")?;
        packages.push(Package {
            name: format!("{} {}", text("name"), text("version")),
            licence: text("license"),
            repository: text("repository"),
            texts: texts(folder)?,
        });
    }
    packages.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(packages)
}

/// Returns the elements of a list in an object.
fn list<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the licences and notices in a folder.
fn texts(folder: &Path) -> Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_named = FILE_NAMES.iter().any(|start| name.to_uppercase().starts_with(start));
        if is_named && path.is_file() {
            let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            texts.push((name, String::from_utf8_lossy(&text).trim_end().to_owned()));
        }
    }
    texts.sort();
    Ok(texts)
}

/// Adds texts to the packages without files: those of another package of the same repository, or `own` if the crate may be
/// used under the licence of this project.
fn complete(packages: &mut [Package], own: &str) -> Result<()> {
    let of_repository: BTreeMap<String, Vec<(String, String)>> = packages
        .iter()
        .filter(|package| !package.texts.is_empty() && !package.repository.is_empty())
        .map(|package| (package.repository.clone(), package.texts.clone()))
        .collect();
    for package in packages.iter_mut().filter(|package| package.texts.is_empty()) {
        if let Some(texts) = of_repository.get(&package.repository) {
            package.texts.clone_from(texts);
        } else if package.licence.contains(OWN_LICENCE) {
            package.texts.push((String::from(OWN_LICENCE), own.trim_end().to_owned()));
        } else {
            let Package { name, licence, .. } = package;
            bail!(
                "the package {name} ({licence}) contains no licence: add its text to xtask/src/licences.rs"
            );
        }
    }
    Ok(())
}

/// Returns the document: all packages, then each different text with the packages that contain it.
fn document(packages: &[Package]) -> String {
    let mut document = String::from(INTRODUCTION);
    let mut texts: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for Package { name, licence, repository, texts: own } in packages {
        let _ = writeln!(document, "- {name}: {licence}, {repository}");
        for (file, text) in own {
            texts.entry((text, file)).or_default().push(name);
        }
    }
    let mut sections: Vec<_> = texts.into_iter().collect();
    sections.sort_by(|a, b| a.1.cmp(&b.1));
    for ((text, file), names) in sections {
        let _ = write!(document, "\n{LINE}\n{file} of {}\n\n{text}\n", names.join(", "));
    }
    document
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use serde_json::json;

    use super::*;

    fn package(name: &str, licence: &str, repository: &str, texts: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            licence: licence.to_owned(),
            repository: repository.to_owned(),
            texts: texts.iter().map(|text| (String::from("LICENSE"), (*text).to_owned())).collect(),
        }
    }

    #[test]
    fn finds_normal_dependencies_with_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let member = |name: &str, files: &[&str]| {
            let own = folder.path().join(name);
            fs::create_dir(&own).unwrap();
            for file in files {
                fs::write(own.join(file), format!("{file} of {name}\n")).unwrap();
            }
            json!({
                "id": name, "name": name, "version": "1.0.0", "license": "MIT", "repository": "r",
                "manifest_path": own.join("Cargo.toml"),
            })
        };
        let dependency =
            |name: &str, kind: Value| json!({"pkg": name, "dep_kinds": [{"kind": "build"}, {"kind": kind}]});
        let metadata = json!({
            "packages": [
                member("root", &[]), member("direct", &["LICENSE-MIT", "notice.txt", "README.md"]),
                member("indirect", &["COPYING"]), member("tool", &["LICENSE"]),
                {"id": "own", "name": "own", "source": null},
            ],
            "resolve": {"root": "root", "nodes": [
                {"id": "root", "deps": [dependency("own", Value::Null), dependency("tool", json!("dev"))]},
                {"id": "own", "deps": [dependency("direct", Value::Null)]},
                {"id": "direct", "deps": [dependency("indirect", Value::Null)]},
                {"id": "indirect", "deps": [dependency("direct", Value::Null)]},
                {"id": "tool", "deps": []},
            ]},
        });
        let found = packages(&metadata).unwrap();
        let names: Vec<_> = found.iter().map(|package| package.name.as_str()).collect();
        assert_eq!(names, ["direct 1.0.0", "indirect 1.0.0"]);
        let files: Vec<_> = found[0].texts.iter().map(|(file, _)| file.as_str()).collect();
        assert_eq!(files, ["LICENSE-MIT", "notice.txt"]);
        let document = document(&found);
        assert!(document.contains("- direct 1.0.0: MIT, r\n- indirect 1.0.0: MIT, r\n"), "{document}");
        assert!(document.contains("\nnotice.txt of direct 1.0.0\n\nnotice.txt of direct\n"), "{document}");
    }

    #[test]
    fn packages_without_file_get_text_of_repository_or_own_text() {
        let mut all = [
            package("a 1", "MIT", "https://forge/x", &["MIT of x"]),
            package("b 1", "MIT", "https://forge/x", &[]),
            package("c 1", "MIT OR Apache-2.0", "", &[]),
        ];
        complete(&mut all, "own\n").unwrap();
        assert_eq!((all[1].texts[0].1.as_str(), all[2].texts[0].1.as_str()), ("MIT of x", "own"));
        assert!(document(&all).contains("LICENSE of a 1, b 1\n\nMIT of x\n"));
        let error = complete(&mut [package("d 1", "ISC", "", &[])], "own").unwrap_err().to_string();
        assert!(error.starts_with("the package d 1 (ISC) contains no licence"), "{error}");
    }
}
