//! `etcd-guard lxcfs-label`: a label tells whether lxcfs answers on a node, so that pods that want its files go where they are.
//! Runs beside lxcfs, in deploy/lxcfs.

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

use super::client::{client, run};
use crate::k8s::NodeLabels;

/// How often lxcfs is looked at: new pods go to a dead one for so long.
const PERIOD: Duration = Duration::from_secs(5);

/// Longest that lxcfs may take for one file, which costs it less than a millisecond.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);

/// How often the label is written anew without need: somebody may have removed it, or the node may have been registered again.
const REPEAT: Duration = Duration::from_secs(60);

/// What the file begins with in every release of Linux and lxcfs.
const BEGIN: &[u8] = b"MemTotal:";

/// Keep a node's label while lxcfs answers on it
#[derive(Debug, Args)]
pub(super) struct LxcfsLabel {
    /// The node's name
    #[arg(long)]
    node: String,
    /// Where lxcfs is mounted: lxcfs.root of the configuration file
    #[arg(long, default_value = "/var/lib/lxcfs")]
    root: PathBuf,
    /// The label: lxcfs.nodeLabel of the configuration file
    #[arg(long, default_value = "etcd-guard.io/lxcfs-ready=true", value_parser = pair)]
    label: (String, String),
    /// How to reach the apiserver; by default $KUBECONFIG, then the pod's service account
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

/// Reads a file of lxcfs now and then. The read may hang for as long as lxcfs does, so a thread of its own does it.
struct Probe {
    file: PathBuf,
    /// A read that has not come back yet.
    pending: Option<oneshot::Receiver<bool>>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(String::from("a label is KEY=VALUE")),
    }
}

// === impl LxcfsLabel ===

impl LxcfsLabel {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(self.keep())
    }

    async fn keep(self) -> anyhow::Result<()> {
        let mut term = signal(SignalKind::terminate()).context("SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("SIGINT")?;
        let nodes = NodeLabels::new(client(self.kubeconfig).await?);
        let (key, value) = self.label;
        let mut probe = Probe { file: self.root.join("proc/meminfo"), pending: None };
        let mut written: Option<(bool, Instant)> = None;
        loop {
            let answers = probe.answers().await;
            let known = written.is_some_and(|(it, at)| it == answers && at.elapsed() < REPEAT);
            if !known {
                match nodes.set(&self.node, &key, answers.then_some(value.as_str())).await {
                    Ok(()) => {
                        if written.is_none_or(|(it, _)| it != answers) {
                            tracing::info!(node = %self.node, label = %key, answers, "lxcfs");
                        }
                        written = Some((answers, Instant::now()));
                    }
                    // Tried again after the period.
                    Err(error) => tracing::warn!(node = %self.node, "{error}"),
                }
            }
            tokio::select! {
                () = sleep(PERIOD) => {}
                _ = term.recv() => break,
                _ = interrupt.recv() => break,
            }
        }
        nodes.set(&self.node, &key, None).await.context("the label stays: nobody looks at lxcfs any more")
    }
}

// === impl Probe ===

impl Probe {
    /// Whether lxcfs answers within the limit. While a read hangs no other is begun.
    async fn answers(&mut self) -> bool {
        let mut pending = self.pending.take().unwrap_or_else(|| begin(self.file.clone()));
        match timeout(ANSWER_LIMIT, &mut pending).await {
            Ok(answer) => answer.unwrap_or(false),
            Err(_) => {
                self.pending = Some(pending);
                false
            }
        }
    }
}

/// Reads on a thread that nobody waits for, not even the end of the program.
fn begin(file: PathBuf) -> oneshot::Receiver<bool> {
    let (sender, receiver) = oneshot::channel();
    thread::spawn(move || {
        // Nobody may be listening any more.
        let _ = sender.send(is_meminfo(&file));
    });
    receiver
}

fn is_meminfo(file: &Path) -> bool {
    let mut begin = [0; BEGIN.len()];
    File::open(file).and_then(|mut it| it.read_exact(&mut begin)).is_ok() && begin == BEGIN
}
