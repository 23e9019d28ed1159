//! `scripts/testbed`: real programs, and a control plane that runs as long as this process.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Mutex, mpsc},
    time::Duration,
};

use crate::{
    processes::child::{prioritized_command, scoped_command},
    project,
};

/// The longest time to build missing programs; the largest takes some minutes and reports progress on stderr.
pub const BUILD_TIMEOUT: Duration = Duration::from_secs(1800);

/// Returns the path of `scripts/testbed`.
pub fn script() -> PathBuf {
    project::path("scripts/testbed")
}

/// A testbed that runs until this is dropped.
pub struct Testbed {
    /// The `NAME=VALUE` lines that the script printed.
    variables: BTreeMap<String, String>,
    /// Closing this channel ends the supervising thread.
    _hold: mpsc::Sender<()>,
}

/// Returns the path of a program, which is built or installed first if necessary. Remembers it: a call of the script takes a
/// tenth of a second of processor time.
pub fn program(name: &str) -> PathBuf {
    static FOUND: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    if let Some(path) = FOUND.lock().expect("the lock is not poisoned").get(name) {
        return path.clone();
    }
    let path = find_program(name);
    FOUND.lock().expect("the lock is not poisoned").insert(name.to_owned(), path.clone());
    path
}

fn find_program(name: &str) -> PathBuf {
    let output = scoped_command(script())
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

/// Starts a control plane with these arguments.
pub fn control_plane(arguments: &[String]) -> Testbed {
    let (sender, receiver) = mpsc::channel();
    let (hold, over) = mpsc::channel();
    let mut command = prioritized_command(script());
    command.arg("control-plane").args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
    // The testbed ends with the thread that spawns it, and the thread of the first test ends with that test.
    let supervise = move || {
        let mut testbed = command.spawn().expect("scripts/testbed starts");
        let lines = BufReader::new(testbed.stdout.take().expect("stdout is a pipe")).lines();
        for line in lines.map_while(Result::ok) {
            let is_last = line == "ready";
            if sender.send(line).is_err() || is_last {
                break;
            }
        }
        drop(sender);
        // An error means that the testbed was dropped.
        let _ = over.recv();
        drop(testbed.stdin.take());
        // The result has no receiver.
        let _ = testbed.wait();
    };
    std::thread::Builder::new().name(String::from("testbed")).spawn(supervise).expect("a thread");
    let mut variables = BTreeMap::new();
    loop {
        let line = receiver.recv_timeout(BUILD_TIMEOUT).expect("the testbed is ready");
        match line.split_once('=') {
            Some((name, value)) => drop(variables.insert(name.to_owned(), value.to_owned())),
            None if line == "ready" => return Testbed { variables, _hold: hold },
            None => {}
        }
    }
}

impl Testbed {
    /// Returns the value of a variable that the script printed.
    pub fn get(&self, name: &str) -> &str {
        self.variables.get(name).unwrap_or_else(|| panic!("scripts/testbed did not print {name}"))
    }

    /// Returns the value of a variable as a path.
    pub fn path(&self, name: &str) -> &Path {
        Path::new(self.get(name))
    }
}
