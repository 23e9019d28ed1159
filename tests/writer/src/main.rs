//! Writes continuously to an etcd cluster: `etcd-guard-writer URL...`, with a URL for each member.
//!
//! For each line on stdin, prints the results since the previous line, until stdin ends.

use std::{env, io, time::Duration};

use etcd_guard_writer::Writer;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};

/// Interval between two writes.
const INTERVAL: Duration = Duration::from_millis(5);

#[tokio::main]
async fn main() -> io::Result<()> {
    let urls: Vec<String> = env::args().skip(1).collect();
    if urls.is_empty() {
        return Err(io::Error::other("usage: etcd-guard-writer URL..."));
    }
    let writer = Writer::start(&urls, INTERVAL).await;
    let mut lines = BufReader::new(stdin()).lines();
    while lines.next_line().await?.is_some() {
        println!("{}", writer.stats());
        writer.reset();
    }
    Ok(())
}
