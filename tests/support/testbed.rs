//! `scripts/testbed`: real programs, and a control plane that lives as long as this process.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    sync::mpsc,
    time::Duration,
};

use super::child::mortal;

/// A program that is not there yet is built; the largest takes some minutes, and parts of it are told on stderr.
pub const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// The script.
pub const TESTBED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/scripts/testbed");

/// A testbed that runs until this is dropped.
pub struct Testbed {
    /// What it says of itself: its `NAME=VALUE` lines.
    variables: HashMap<String, String>,
    /// Its keeper waits for the other end's end.
    _hold: mpsc::Sender<()>,
}

/// Where a program is; it is built or installed first if need be.
pub fn program(name: &str) -> PathBuf {
    let output = mortal(TESTBED)
        .args(["programs", name])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("scripts/testbed starts");
    assert!(output.status.success(), "scripts/testbed programs {name}: {}", output.status);
    let lines = String::from_utf8(output.stdout).expect("paths in UTF-8");
    let path = lines.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    PathBuf::from(path.unwrap_or_else(|| panic!("scripts/testbed programs {name} names no path:\n{lines}")))
}

/// Starts a control plane with these further arguments.
pub fn control_plane(arguments: &[String]) -> Testbed {
    let (said, heard) = mpsc::channel();
    let (hold, over) = mpsc::channel();
    let mut command = mortal(TESTBED);
    command.arg("control-plane").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    // The testbed dies with the thread that spawns it, and the first test's thread ends with that test.
    let keeper = move || {
        let mut testbed = command.spawn().expect("scripts/testbed starts");
        let lines = BufReader::new(testbed.stdout.take().expect("stdout is a pipe")).lines();
        for line in lines.map_while(Result::ok) {
            let is_last = line == "ready";
            if said.send(line).is_err() || is_last {
                break;
            }
        }
        drop(said);
        // An error: nobody holds it any more.
        let _ = over.recv();
        drop(testbed.stdin.take());
        // It has nobody to tell.
        let _ = testbed.wait();
    };
    std::thread::Builder::new().name(String::from("testbed")).spawn(keeper).expect("a thread");
    let mut variables = HashMap::new();
    loop {
        let line = heard.recv_timeout(BUILD_LIMIT).expect("the testbed gets ready");
        match line.split_once('=') {
            Some((name, value)) => drop(variables.insert(name.to_owned(), value.to_owned())),
            None if line == "ready" => return Testbed { variables, _hold: hold },
            None => {}
        }
    }
}

impl Testbed {
    pub fn get(&self, name: &str) -> &str {
        self.variables.get(name).unwrap_or_else(|| panic!("scripts/testbed prints {name}"))
    }

    pub fn path(&self, name: &str) -> &Path {
        Path::new(self.get(name))
    }
}
