//! A client that writes continuously and measures how long no write succeeded.

// A failed start of the writer ends the test, the bench or the demo.
#![allow(clippy::expect_used, clippy::indexing_slicing)]
#![allow(clippy::missing_panics_doc, clippy::must_use_candidate)]

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, Error, KvClient};
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

/// The gRPC status code of a member that is unreachable or shutting down.
const UNAVAILABLE: i32 = 14;

/// The longest time for a connection; on loopback a closed port is refused at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest time for one write: more than the 7 s after which etcd itself returns an error.
const WRITE_TIMEOUT: Duration = Duration::from_secs(8);

/// A running writer.
pub struct Writer {
    written: Arc<Mutex<WriteStats>>,
    task: JoinHandle<()>,
}

/// The results of the writes.
#[derive(Clone, Copy, Debug)]
pub struct WriteStats {
    /// The time of the last acknowledged write, or of the reset.
    last: Instant,
    /// The longest time without an acknowledged write.
    pub longest_gap: Duration,
    /// The number of acknowledged writes.
    pub acknowledged: u32,
    /// The number of writes that failed or timed out.
    pub failed: u32,
}

impl Writer {
    /// Starts a writer that behaves like etcd's own client library: it uses the members in turn and skips unreachable
    /// ones, and does not repeat a write that a member accepted. It starts a write at every interval, independent of
    /// earlier results (an open loop).
    pub async fn start(urls: &[String], every: Duration) -> Self {
        let mut members = Vec::new();
        for url in urls {
            let options = ConnectOptions::new().with_connect_timeout(CONNECT_TIMEOUT);
            members.push(Client::connect([url], Some(options)).await.expect("a client").kv_client());
        }
        let written = Arc::new(Mutex::new(WriteStats::new()));
        let task = tokio::spawn(write(members, every, Arc::clone(&written)));
        Self { written, task }
    }

    /// Resets the statistics.
    pub fn reset(&self) {
        *self.written.lock().expect("the lock is not poisoned") = WriteStats::new();
    }

    /// Returns the results so far, including a gap that has not ended yet.
    pub fn stats(&self) -> WriteStats {
        let mut written = *self.written.lock().expect("the lock is not poisoned");
        written.longest_gap = written.longest_gap.max(written.last.elapsed());
        written
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WriteStats {
    fn new() -> Self {
        Self { last: Instant::now(), longest_gap: Duration::ZERO, acknowledged: 0, failed: 0 }
    }
}

/// Formats the results as `longest gap 31 ms, 1602 acknowledged, 0 failed`.
impl fmt::Display for WriteStats {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { longest_gap, acknowledged, failed, .. } = self;
        write!(
            formatter,
            "longest gap {} ms, {acknowledged} acknowledged, {failed} failed",
            longest_gap.as_millis()
        )
    }
}

async fn write(members: Vec<KvClient>, every: Duration, written: Arc<Mutex<WriteStats>>) {
    let mut ticks = interval(every);
    // Missed ticks are skipped, so that a delayed writer does not send bursts.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for first in (0..members.len()).cycle() {
        ticks.tick().await;
        let (members, written) = (members.clone(), Arc::clone(&written));
        tokio::spawn(async move {
            let is_written = matches!(timeout(WRITE_TIMEOUT, put(members, first)).await, Ok(Ok(())));
            let mut written = written.lock().expect("the lock is not poisoned");
            if is_written {
                let now = Instant::now();
                written.longest_gap = written.longest_gap.max(now - written.last);
                (written.last, written.acknowledged) = (now, written.acknowledged + 1);
            } else {
                written.failed += 1;
            }
        });
    }
}

/// Writes the key at the first reachable member, starting with this one.
async fn put(mut members: Vec<KvClient>, first: usize) -> Result<(), Error> {
    let count = members.len();
    for offset in 0..count {
        match members[(first + offset) % count].put("writer", "", None).await {
            Err(Error::GRpcStatus(status))
                if i32::from(status.code()) == UNAVAILABLE && offset + 1 < count => {}
            result => return result.map(drop),
        }
    }
    Ok(())
}
