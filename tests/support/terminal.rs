//! A terminal of its own for a program: what it shows where a person watches.

use std::{
    fs::File,
    io::Read,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use nix::pty::{OpenptyResult, openpty};

use super::wait::until;

/// A program at a terminal; it ends with this.
pub struct Terminal {
    shown: Arc<Mutex<String>>,
    _program: tokio::process::Child,
}

impl Terminal {
    /// Starts the program with both of its outputs there.
    pub fn of(mut command: Command) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).expect("a terminal");
        let error = slave.try_clone().expect("the terminal once more");
        command.stdout(slave).stderr(error);
        let mut command = tokio::process::Command::from(command);
        let program = command.kill_on_drop(true).spawn().expect("the program starts");
        let shown = Arc::<Mutex<String>>::default();
        let showing = Arc::clone(&shown);
        // It ends by itself when nobody has the terminal open any more.
        thread::spawn(move || copy(File::from(master), &showing));
        Self { shown, _program: program }
    }

    /// All that was shown so far.
    pub fn shown(&self) -> String {
        self.shown.lock().expect("nobody panics with it").clone()
    }

    /// Returns what was shown up to now, as soon as this is true of it.
    pub async fn until(&self, limit: std::time::Duration, is_there: impl Fn(&str) -> bool) -> String {
        until("the terminal shows it", limit, async || is_there(&self.shown())).await;
        self.shown()
    }
}

fn copy(mut terminal: File, shown: &Mutex<String>) {
    let mut bytes = [0; 4096];
    // The end of a terminal is an error, of input and output.
    while let Ok(count @ 1..) = terminal.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]);
        shown.lock().expect("nobody panics with it").push_str(&text);
    }
}
