//! The structure of the crate: which modules may depend on which, no import cycles between files, and limits for the
//! size of folders and files. `ARCHITECTURE.md` describes the layers; this test reads the `use` statements and paths
//! of `src`.

// Failed assertions panic, and the source text of a test run is trusted.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod rules;
mod source;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::rules::{Layers, violations};

/// The layers of this crate. In `guard`, only the facade `guard.rs` depends on `evaluation` and `survey`. `cli` may
/// depend on all top modules.
const LAYERS: [Layers; 2] = [
    Layers {
        parent: "guard",
        allowed: &[
            ("model", &[]),
            ("metrics", &["model"]),
            ("policy", &["model"]),
            ("reserve", &["model"]),
            ("discovery", &["model"]),
            ("ownership", &["model", "discovery"]),
            ("observe", &["model", "metrics", "policy", "reserve", "discovery", "ownership"]),
            ("assess", &["model", "policy"]),
            ("explain", &["model", "policy", "assess"]),
            ("inspect", &["model", "policy", "discovery"]),
            ("cluster_cache", &["model", "observe", "policy", "reserve"]),
            (
                "services",
                &[
                    "cluster_cache",
                    "discovery",
                    "metrics",
                    "model",
                    "observe",
                    "ownership",
                    "policy",
                    "reserve",
                ],
            ),
            (
                "evaluation",
                &[
                    "cluster_cache",
                    "services",
                    "model",
                    "metrics",
                    "policy",
                    "reserve",
                    "discovery",
                    "ownership",
                    "observe",
                    "assess",
                    "explain",
                ],
            ),
            (
                "handover",
                &["services", "model", "metrics", "policy", "reserve", "discovery", "observe", "assess"],
            ),
            ("survey", &["services", "model", "metrics", "policy", "discovery", "observe", "assess"]),
        ],
        unrestricted: &[],
    },
    Layers {
        parent: "",
        allowed: &[
            ("escape", &[]),
            ("expiring_cache", &[]),
            ("json", &[]),
            ("k8s", &["escape", "expiring_cache"]),
            ("mistakes", &[]),
            ("terminal", &["escape"]),
            ("traces", &[]),
            ("etcd", &["escape", "expiring_cache", "traces"]),
            ("patch", &["json"]),
            ("config", &["escape", "json", "k8s"]),
            ("rules", &["config"]),
            ("nodes", &["config", "escape", "json", "k8s", "patch"]),
            ("inject", &["config", "escape", "json", "k8s", "patch"]),
            ("guard", &["config", "escape", "etcd", "expiring_cache", "json", "k8s", "mistakes", "traces"]),
            ("server", &["config", "escape", "guard", "inject", "json", "k8s", "nodes", "rules", "traces"]),
            ("certificates", &["k8s", "server"]),
            ("guard_client", &["escape", "terminal"]),
            ("conformance", &["escape", "guard", "guard_client", "maintenance", "terminal"]),
            ("maintenance", &["escape", "guard", "guard_client", "k8s", "server", "terminal"]),
            (
                "doctor",
                &["certificates", "config", "escape", "etcd", "guard", "guard_client", "k8s", "terminal"],
            ),
        ],
        unrestricted: &["cli"],
    },
];

/// The text of each Rust file below a folder, by its path in the folder.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut folders = vec![PathBuf::from(folder)];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(name, fs::read_to_string(&path).unwrap());
            }
        }
    }
    files
}

#[test]
fn keeps_the_layers_and_limits_of_the_crate() {
    let files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert!(files.len() > 100, "the source files were not found");
    let found = violations(&files, &LAYERS);
    assert!(found.is_empty(), "violations of the architecture:\n{found:#?}");
}

/// A crate of three layers: `top` depends on `middle`, and `middle` on `base`.
const EXAMPLE: [(&str, &str); 6] = [
    ("lib.rs", "pub mod base; mod middle; mod top;"),
    ("base.rs", "pub struct Base;"),
    ("middle.rs", "mod left; pub mod right; pub use self::left::Left;"),
    ("middle/left.rs", "use crate::base::Base; pub struct Left(Base);"),
    ("middle/right.rs", "pub(in crate::middle) fn right() -> &'static str { \"crate::top::Top\" }"),
    ("top.rs", "use crate::{base::Base, middle::{Left, right::{self}}}; pub struct Top(Left, Base);"),
];

const EXAMPLE_LAYERS: [Layers; 2] = [
    Layers { parent: "", allowed: &[("base", &[]), ("middle", &["base"])], unrestricted: &["top"] },
    Layers { parent: "middle", allowed: &[("left", &[]), ("right", &["left"])], unrestricted: &[] },
];

/// Returns the violations of the example after this file is added or replaced.
fn violations_with(path: &str, text: &str) -> Vec<String> {
    let mut files: BTreeMap<String, String> =
        EXAMPLE.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    files.insert(path.to_owned(), text.to_owned());
    violations(&files, &EXAMPLE_LAYERS)
}

#[test]
fn accepts_the_example() {
    assert_eq!(violations_with("base.rs", "pub struct Base;"), [""; 0]);
}

#[test]
fn reports_imports_against_the_layers() {
    let expected = ["middle/left.rs must not import top.rs"];
    // Each kind of path is found, and without a cycle only the layers are violated.
    let top_free = |text: &str| {
        let mut files: BTreeMap<String, String> =
            EXAMPLE.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        files.insert(String::from("top.rs"), String::from("pub struct Top;"));
        files.insert(String::from("middle/left.rs"), text.to_owned());
        violations(&files, &EXAMPLE_LAYERS)
    };
    assert_eq!(top_free("use crate::top::Top;"), expected);
    assert_eq!(top_free("use crate::{base::Base, top::{Top as Other}};"), expected);
    assert_eq!(top_free("fn top() -> crate::top::Top { todo!() }"), expected);
    assert_eq!(top_free("use super::super::top::*;"), expected);
    assert_eq!(top_free("#[cfg(not(test))] use crate::top::Top;"), expected);
    assert_eq!(top_free("use crate::middle::right;"), ["middle/left.rs must not import middle/right.rs"]);
}

#[test]
fn reports_modules_that_are_not_listed_in_a_layer() {
    let declaring = |parent: &str, declarations: &str, paths: &[&str]| {
        let mut files: BTreeMap<String, String> =
            EXAMPLE.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        files.get_mut(parent).unwrap().push_str(declarations);
        files.extend(paths.iter().map(|path| ((*path).to_owned(), String::new())));
        violations(&files, &EXAMPLE_LAYERS)
    };
    assert_eq!(declaring("lib.rs", "mod other;", &["other.rs"]), ["other.rs is not listed in a layer"]);
    assert_eq!(
        declaring("middle.rs", "mod other;", &["middle/other.rs"]),
        ["middle/other.rs is not listed in a layer"]
    );
    // Levels without layers are not restricted, and modules for tests are not part of the crate.
    assert_eq!(declaring("base.rs", "mod other;", &["base/other.rs"]), [""; 0]);
    assert_eq!(declaring("lib.rs", "#[cfg(test)] mod other;", &["other.rs"]), [""; 0]);
}

#[test]
fn ignores_comments_strings_and_test_code() {
    for text in [
        "// use crate::top::Top;",
        "/* use crate::top::Top; */",
        "const TEXT: &str = r#\"use \"crate::top::Top\"#;",
        "const QUOTE: char = '\"'; /// \" crate::top::Top",
        "#[cfg(test)] mod tests { use crate::top::Top; }",
        "#[cfg(any(test, fuzzing))] pub(crate) use crate::top::{Top};",
        "pub(in crate::top) fn visible() {}",
    ] {
        assert_eq!(violations_with("middle/left.rs", text), [""; 0], "{text}");
    }
}

#[test]
fn reports_cycles_also_between_parent_and_child() {
    let expected = ["import cycle: middle.rs, middle/left.rs"];
    assert_eq!(violations_with("middle/left.rs", "use crate::middle::Left;"), {
        let mut all = expected.to_vec();
        all.push("middle/left.rs must not import middle.rs");
        all
    });
    let files = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b;"),
        ("b.rs", "use crate::c;"),
        ("c.rs", "fn c() { crate::a::a() }"),
    ];
    let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    assert_eq!(violations(&files, &[]), ["import cycle: a.rs, b.rs, c.rs"]);
}

#[test]
fn reports_long_files_and_full_folders() {
    assert_eq!(violations_with("base.rs", &"\n".repeat(450)), [""; 0]);
    assert_eq!(violations_with("base.rs", &"\n".repeat(451)), ["base.rs has more than 450 lines"]);
    let mut files: BTreeMap<String, String> = [(String::from("lib.rs"), String::new())].into();
    files.extend((0..14).map(|n| (format!("data/{n}.rs"), String::new())));
    assert_eq!(violations(&files, &[]), [""; 0]);
    files.insert(String::from("data/14.rs"), String::new());
    assert_eq!(violations(&files, &[]), ["folder data has more than 14 files"]);
}
