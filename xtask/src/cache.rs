//! The cache of built programs and images, outside the source tree, and locks on files in it.

use std::{
    env,
    fs::{self, File},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, Flock, FlockArg, fcntl},
    unistd::{AccessFlags, access},
};

use crate::log;

/// Interval at which a lock of another process is tried again.
const LOCK_INTERVAL: Duration = Duration::from_millis(100);

/// Interval at which a process that waits for a lock reports so: output without a terminal shows nothing else meanwhile.
const NOTICE_INTERVAL: Duration = Duration::from_secs(15);

/// Root of the cache: `ETCD_GUARD_CACHE`, else `etcd-guard` in the user's cache directory.
pub(crate) fn root() -> Result<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(root) = variable("ETCD_GUARD_CACHE") {
        return Ok(root);
    }
    if let Some(cache) = variable("XDG_CACHE_HOME") {
        return Ok(cache.join("etcd-guard"));
    }
    let home = variable("HOME").context("HOME is not set: set ETCD_GUARD_CACHE to a writable directory")?;
    Ok(home.join(".cache/etcd-guard"))
}

/// Creates a directory of the cache and returns its path.
pub(crate) fn directory(name: &str) -> Result<PathBuf> {
    let path = root()?.join(name);
    let writable = fs::create_dir_all(&path).is_ok() && access(&path, AccessFlags::W_OK).is_ok();
    if !writable {
        bail!("cannot write to {}: set ETCD_GUARD_CACHE to a writable directory", path.display());
    }
    Ok(path)
}

/// The times of the lines about a wait.
#[derive(Default)]
struct Notices {
    /// The time of the next line, after the start of the wait.
    next: Duration,
}

// === impl Notices ===

impl Notices {
    /// Returns whether a line is due, at most once for each interval.
    fn is_due(&mut self, elapsed: Duration) -> bool {
        let is_due = elapsed >= self.next;
        while self.next <= elapsed {
            self.next += NOTICE_INTERVAL;
        }
        is_due
    }
}

/// An exclusive lock that is released when this value is dropped and all child processes that inherited it have ended.
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Locks a file, which is created, or an existing directory. While another process has the lock, prints `waiting`
    /// at once and every 15 s, and tries again until `timeout`.
    pub(crate) fn acquire(path: &Path, waiting: &str, timeout: Duration) -> Result<Self> {
        let file = if path.is_dir() { File::open(path) } else { File::create(path) };
        let mut file = file.with_context(|| format!("cannot open {}", path.display()))?;
        let started = Instant::now();
        let mut notices = Notices::default();
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => {
                    // Children inherit it: if this process is killed, the lock lasts until they have ended.
                    fcntl(&*lock, FcntlArg::F_SETFD(FdFlag::empty())).context("cannot share the lock")?;
                    return Ok(Self { _file: lock });
                }
                Err((unlocked, Errno::EWOULDBLOCK)) => file = unlocked,
                Err((_, error)) => bail!("cannot lock {}: {error}", path.display()),
            }
            let elapsed = started.elapsed();
            if notices.is_due(elapsed) {
                let seconds = elapsed.as_secs();
                let duration = if seconds == 0 { String::new() } else { format!(" ({seconds} s)") };
                log::info(format_args!("{waiting}{duration}"));
            }
            if elapsed >= timeout {
                bail!("the other process did not finish within {} s: {waiting}", timeout.as_secs());
            }
            thread::sleep(LOCK_INTERVAL);
        }
    }

    /// Locks a file or directory if no other process has the lock.
    pub(crate) fn try_acquire(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?;
        debug_assert!(file.as_raw_fd() > 2);
        Flock::lock(file, FlockArg::LockExclusiveNonblock).ok().map(|lock| Self { _file: lock })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_is_reported_at_once_and_every_interval() {
        let mut notices = Notices::default();
        let mut is_due = |seconds: u64| notices.is_due(Duration::from_secs(seconds));
        let due: Vec<bool> = [0, 1, 14, 15, 16, 29, 50, 51, 60].into_iter().map(&mut is_due).collect();
        assert_eq!(due, [true, false, false, true, false, false, true, false, true]);
    }

    #[test]
    fn second_lock_waits_until_the_first_is_released() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let lock = Lock::acquire(&path, "waiting", Duration::ZERO).unwrap();
        assert!(Lock::try_acquire(&path).is_none());
        let error = Lock::acquire(&path, "waiting for the test", Duration::ZERO).err().unwrap();
        assert!(error.to_string().contains("did not finish within 0 s"), "{error}");
        drop(lock);
        assert!(Lock::try_acquire(&path).is_some());
    }
}
