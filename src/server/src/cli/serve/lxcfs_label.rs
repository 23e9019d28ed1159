//! `etcd-guard lxcfs-label`: labels a node while lxcfs responds on it, so that pods that mount lxcfs files are
//! scheduled to such nodes. It runs beside lxcfs, see deploy/lxcfs.

use std::{
    fs::File,
    io::Read,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use anyhow::Context;
use clap::Args;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::oneshot,
    time::{Instant, sleep, timeout},
};

use crate::cli::kube_client::client;
use etcd_guard_cli::access::run;
use etcd_guard_inject::config::NodeLabel;
use etcd_guard_kubernetes::NodeLabels;

/// Interval of probes. For this long, new pods may be scheduled to a node with a failed lxcfs.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);

/// Timeout of a probe. A working lxcfs responds within a millisecond.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);

/// Interval of writes without a change: the label may have been removed, or the node may have been registered again.
const REFRESH_INTERVAL: Duration = Duration::from_secs(60);

/// Start of the probed file in every release of Linux and lxcfs.
const MEMINFO_PREFIX: &[u8] = b"MemTotal:";

/// Label a node while lxcfs responds on it
#[derive(Debug, Args)]
pub(crate) struct LxcfsLabel {
    /// The name of the node
    #[arg(long)]
    node: String,
    /// The mount point of lxcfs, as `lxcfs.root` in the configuration file
    #[arg(long, default_value = "/var/lib/lxcfs")]
    root: PathBuf,
    /// The label, as `lxcfs.nodeLabel` in the configuration file
    #[arg(long, value_name = "KEY=VALUE", default_value = "node-restriction.kubernetes.io/lxcfs-ready=true", value_parser = parse_label)]
    label: NodeLabel,
    /// The kubeconfig file; by default $KUBECONFIG, then the service account of the pod
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Reads a file of lxcfs on a separate thread, because the read hangs if lxcfs does.
struct Probe {
    file: PathBuf,
    /// The read in progress, if any.
    pending: Option<oneshot::Receiver<bool>>,
}

fn parse_label(text: &str) -> Result<NodeLabel, String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => {
            Ok(NodeLabel { key: key.to_owned(), value: value.to_owned() })
        }
        _ => Err(String::from("expected KEY=VALUE")),
    }
}

// === impl LxcfsLabel ===

impl LxcfsLabel {
    pub(crate) fn run(self) -> anyhow::Result<()> {
        run(self.maintain_label())
    }

    async fn maintain_label(self) -> anyhow::Result<()> {
        let mut term = signal(SignalKind::terminate()).context("failed to handle SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("failed to handle SIGINT")?;
        let nodes = NodeLabels::new(client(self.kubeconfig).await?);
        let mut probe = Probe { file: self.root.join("proc/meminfo"), pending: None };
        let mut written: Option<(bool, Instant)> = None;
        loop {
            let responds = probe.responds().await;
            let is_current =
                written.is_some_and(|(value, at)| value == responds && at.elapsed() < REFRESH_INTERVAL);
            if !is_current {
                let value = responds.then_some(self.label.value.as_str());
                match nodes.set(&self.node, &self.label.key, value).await {
                    Ok(()) => {
                        if written.is_none_or(|(value, _)| value != responds) {
                            tracing::info!(node = %self.node, label = %self.label.key, responds, "lxcfs");
                        }
                        written = Some((responds, Instant::now()));
                    }
                    // The next iteration retries.
                    Err(error) => tracing::warn!(node = %self.node, "{error}"),
                }
            }
            tokio::select! {
                () = sleep(PROBE_INTERVAL) => {}
                _ = term.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        nodes
            .set(&self.node, &self.label.key, None)
            .await
            .context("failed to remove the label, which may become outdated")
    }
}

// === impl Probe ===

impl Probe {
    /// Returns whether lxcfs responds before the timeout. Starts no new read while one is in progress.
    async fn responds(&mut self) -> bool {
        let mut pending = self.pending.take().unwrap_or_else(|| start_read(self.file.clone()));
        match timeout(PROBE_TIMEOUT, &mut pending).await {
            Ok(answer) => answer.unwrap_or(false),
            Err(_) => {
                self.pending = Some(pending);
                false
            }
        }
    }
}

/// Starts a read on a detached thread, which does not delay the exit of the program if it hangs.
fn start_read(file: PathBuf) -> oneshot::Receiver<bool> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        // Fails if the receiver was dropped.
        let _ = sender.send(is_meminfo(&file));
    });
    receiver
}

fn is_meminfo(file: &Path) -> bool {
    let mut prefix = [0; MEMINFO_PREFIX.len()];
    File::open(file).and_then(|mut file| file.read_exact(&mut prefix)).is_ok() && prefix == MEMINFO_PREFIX
}
