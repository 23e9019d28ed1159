//! A pseudo-terminal for a program.

use std::{
    fs::File,
    io::Read,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

use nix::pty::{OpenptyResult, openpty};

use crate::wait::wait_until;

/// A program on a terminal. It is killed when this is dropped.
pub struct Terminal {
    shown: Arc<Mutex<String>>,
    _program: tokio::process::Child,
}

impl Terminal {
    /// Starts the program with both outputs connected to the terminal.
    pub fn start(mut command: Command) -> Self {
        let OpenptyResult { master, slave } = openpty(None, None).expect("a terminal");
        let error = slave.try_clone().expect("the terminal once more");
        command.stdout(slave).stderr(error);
        let mut command = tokio::process::Command::from(command);
        let program = command.kill_on_drop(true).spawn().expect("the program starts");
        let shown = Arc::<Mutex<String>>::default();
        let showing = Arc::clone(&shown);
        // The thread ends when all ends of the terminal are closed.
        thread::spawn(move || copy(File::from(master), &showing));
        Self { shown, _program: program }
    }

    /// Returns the whole output so far.
    pub fn shown(&self) -> String {
        self.shown.lock().expect("the lock is not poisoned").clone()
    }

    /// Waits until the output satisfies the condition, and returns the output.
    pub async fn wait_until_shown(
        &self,
        limit: std::time::Duration,
        is_complete: impl Fn(&str) -> bool,
    ) -> String {
        wait_until("the terminal shows the expected output", limit, async || is_complete(&self.shown()))
            .await;
        self.shown()
    }
}

fn copy(mut terminal: File, shown: &Mutex<String>) {
    let mut bytes = [0; 4096];
    // The end of a terminal is reported as an I/O error.
    while let Ok(count @ 1..) = terminal.read(&mut bytes) {
        let text = String::from_utf8_lossy(&bytes[..count]);
        shown.lock().expect("the lock is not poisoned").push_str(&text);
    }
}
