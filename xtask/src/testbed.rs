//! Supervision of a testbed: the life of its processes, of its directory and of its cgroup.
//!
//! A supervisor runs one command, the body. Processes that the body starts with `xtask start` become children of the
//! supervisor and die with it. A reaper in a session of its own removes the directory and the cgroup when all of these
//! processes have ended, also after `kill -9` of the supervisor.

pub(crate) mod reap;
pub(crate) mod start;
pub(crate) mod supervise;
pub(crate) mod wait;
