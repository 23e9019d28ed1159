//! Sockets of a process.

use std::{collections::BTreeSet, fs};

/// The state of a listening TCP socket in `/proc/PID/net/tcp`.
const LISTEN: &str = "0A";

/// Returns the local addresses of the TCP sockets at which a process listens, as the kernel prints them. `/proc/PID/net`
/// contains the sockets of the whole network namespace; those of the process are among its file descriptors.
pub fn listening_addresses(pid: u32) -> Vec<String> {
    let links = fs::read_dir(format!("/proc/{pid}/fd")).expect("a running process");
    // A descriptor may be closed meanwhile.
    let own: BTreeSet<String> = links
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let tables = ["tcp", "tcp6"].map(|name| fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let mut addresses = Vec::new();
    for table in tables.into_iter().flatten() {
        for line in table.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            let is_own = columns.get(9).is_some_and(|inode| own.contains(&format!("socket:[{inode}]")));
            if is_own && columns.get(3) == Some(&LISTEN) {
                addresses.push(columns[1].to_owned());
            }
        }
    }
    addresses
}
