//! A client that writes all the time, and knows for how long nothing was written.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use etcd_client::{Client, ConnectOptions, Error, KvClient};
use tokio::{
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, timeout},
};

/// gRPC's code for a member that cannot be reached, or that ends.
const UNAVAILABLE: i32 = 14;

/// Longest that a connection may take to come about; on loopback it is refused at once.
const CONNECT_LIMIT: Duration = Duration::from_secs(1);

/// Longest that one write is waited for: more than the 7 s after which etcd gives up by itself.
const WRITE_LIMIT: Duration = Duration::from_secs(8);

/// A running writer.
pub struct Writer {
    written: Arc<Mutex<Written>>,
    task: JoinHandle<()>,
}

/// What became of its writes.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    /// When the last write was acknowledged, or the count began.
    last: Instant,
    /// Longest time without an acknowledged write.
    pub longest_gap: Duration,
    pub acknowledged: u32,
    pub failed: u32,
}

impl Writer {
    /// Starts one as the client of etcd's own library is: it goes round the members, and passes over those that it
    /// cannot reach. What a member has taken it does not send again. It writes that often, whatever became of the writes
    /// before: an open loop.
    pub async fn start(urls: &[String], every: Duration) -> Self {
        let mut members = Vec::new();
        for url in urls {
            let options = ConnectOptions::new().with_connect_timeout(CONNECT_LIMIT);
            members.push(Client::connect([url], Some(options)).await.expect("a client").kv_client());
        }
        let written = Arc::new(Mutex::new(Written::new()));
        let task = tokio::spawn(write(members, every, Arc::clone(&written)));
        Self { written, task }
    }

    /// Begins the count anew.
    pub fn reset(&self) {
        *self.written.lock().expect("nobody panics here") = Written::new();
    }

    /// What became of the writes so far; a gap counts while it lasts.
    pub fn written(&self) -> Written {
        let mut written = *self.written.lock().expect("nobody panics here");
        written.longest_gap = written.longest_gap.max(written.last.elapsed());
        written
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Written {
    fn new() -> Self {
        Self { last: Instant::now(), longest_gap: Duration::ZERO, acknowledged: 0, failed: 0 }
    }
}

async fn write(members: Vec<KvClient>, every: Duration, written: Arc<Mutex<Written>>) {
    let mut ticks = interval(every);
    // A writer that was held up itself does not catch up.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    for first in (0..members.len()).cycle() {
        ticks.tick().await;
        let (members, written) = (members.clone(), Arc::clone(&written));
        tokio::spawn(async move {
            let is_written = matches!(timeout(WRITE_LIMIT, put(members, first)).await, Ok(Ok(())));
            let mut written = written.lock().expect("nobody panics here");
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

/// Puts the key at the first member from this one on that can be reached.
async fn put(mut members: Vec<KvClient>, first: usize) -> Result<(), Error> {
    let count = members.len();
    for turn in 0..count {
        match members[(first + turn) % count].put("writer", "", None).await {
            Err(Error::GRpcStatus(status)) if i32::from(status.code()) == UNAVAILABLE && turn + 1 < count => {
            }
            result => return result.map(drop),
        }
    }
    Ok(())
}
