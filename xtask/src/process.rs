//! Child processes: exit statuses, output, and a launcher that binds a process to the life of another one.

use std::{
    ffi::OsString,
    fs,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use nix::{
    sys::{
        prctl,
        signal::{SigSet, Signal},
    },
    unistd::{Pid, getppid, setsid},
};

/// Limit for a process to be adopted by the supervisor after its launcher has ended.
const ADOPTION_TIMEOUT: Duration = Duration::from_secs(5);

/// Launches a command that is killed when its parent dies.
#[derive(Args)]
pub(crate) struct Launch {
    /// Process that must be the parent; its death kills the command.
    #[arg(long)]
    parent: Option<i32>,
    /// Wait until the parent has adopted this process.
    #[arg(long)]
    adopted: bool,
    /// Start a session, which keeps the signals of a terminal away from the command.
    #[arg(long)]
    session: bool,
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

impl Launch {
    /// Replaces this process by the command; returns only on failure.
    pub(crate) fn exec(self) -> Result<()> {
        if let Some(parent) = self.parent {
            self.bind(Pid::from_raw(parent))?;
        }
        if self.session {
            setsid().context("cannot start a session")?;
        }
        unblock_signals()?;
        let (program, arguments) = self.command.split_first().context("no command")?;
        let error = Command::new(program).args(arguments).exec();
        bail!("cannot start {}: {error}", program.display())
    }

    fn bind(&self, parent: Pid) -> Result<()> {
        let deadline = Instant::now() + ADOPTION_TIMEOUT;
        while self.adopted && getppid() != parent && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        prctl::set_pdeathsig(Signal::SIGKILL).context("cannot set the parent-death signal")?;
        // The parent may have died before the signal was set.
        ensure!(getppid() == parent, "process {parent} is not the parent of this process");
        Ok(())
    }
}

/// Prepares a command that starts with no signal blocked, with further options of [`Launch`].
pub(crate) fn launch(options: &[&str], command: &[OsString]) -> Command {
    let mut launch = this_program();
    launch.arg("launch").args(options).arg("--").args(command);
    launch
}

/// Prepares a call of another task of this program.
pub(crate) fn this_program() -> Command {
    // Not `current_exe`: that path is wrong once the program is built anew, also while it runs.
    let mut program = Command::new("/proc/self/exe");
    program.arg0("xtask");
    program
}

/// Removes the signal mask that a supervisor has set, which child processes inherit.
pub(crate) fn unblock_signals() -> Result<()> {
    SigSet::all().thread_unblock().context("cannot unblock signals")
}

/// Exit status as a shell reports it: 128 plus the signal for a killed process.
pub(crate) fn shell_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Whether a process runs; a dead one or a zombie does not.
pub(crate) fn is_alive(pid: Pid) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'X' | 'Z'))
}

/// State of a process as in `/proc/PID/stat`.
fn state(pid: Pid) -> Option<char> {
    stat_fields(pid)?.first()?.chars().next()
}

/// Parent of a process.
pub(crate) fn parent(pid: Pid) -> Option<Pid> {
    stat_fields(pid)?.get(1)?.parse().ok().map(Pid::from_raw)
}

/// Fields of `/proc/PID/stat` behind the command name, which may hold blanks and parentheses.
fn stat_fields(pid: Pid) -> Option<Vec<String>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Runs a command without input and returns its standard output.
pub(crate) fn stdout(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_owned();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", Path::new(&program).display()))?;
    ensure!(
        output.status.success(),
        "{} failed: {}",
        Path::new(&program).display(),
        String::from_utf8_lossy(&output.stderr).trim()
    );
    String::from_utf8(output.stdout).context("the output is not UTF-8")
}

/// SHA-256 digest of a file in hexadecimal.
pub(crate) fn sha256(file: &Path) -> Result<String> {
    let text = stdout(Command::new("sha256sum").arg("--").arg(file))?;
    let digest =
        text.trim_start_matches('\\').split_whitespace().next().context("sha256sum printed no digest")?;
    Ok(digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_alive_and_has_a_parent() {
        let own = Pid::this();
        assert!(is_alive(own));
        assert_eq!(parent(own), Some(getppid()));
    }

    #[test]
    fn ended_process_is_not_alive() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap());
        // A zombie until it is waited for.
        while is_alive(pid) {
            thread::sleep(Duration::from_millis(5));
        }
        child.wait().unwrap();
        assert!(!is_alive(pid));
    }

    #[test]
    fn killed_process_has_the_status_of_a_shell() {
        let killed = Command::new("sh").args(["-c", "kill -9 $$"]).status().unwrap();
        assert_eq!(shell_status(killed), 137);
        let failed = Command::new("sh").args(["-c", "exit 3"]).status().unwrap();
        assert_eq!(shell_status(failed), 3);
    }

    #[test]
    fn digest_is_that_of_the_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let digest = sha256(file.path()).unwrap();
        assert_eq!(digest, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }
}
