//! A node whose pods are processes. It runs the etcd of each pod that is bound to it on a loopback address of its own,
//! and
//! otherwise behaves like a kubelet. `scripts/demo --loopback` uses it.
//!
//! SIGTERM and SIGINT end it and all of its processes.

use std::path::PathBuf;

use clap::Parser;
use test_support::process_node::{Addresses, NodeIdentity, ProcessNode, Settings};
use tokio::signal::unix::{SignalKind, signal};

/// Runs pods as processes.
#[derive(Parser)]
struct Arguments {
    /// Kubeconfig of a user who may create Node objects and read claims and volumes
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The name of the node
    #[arg(long)]
    node: String,
    /// Kubeconfig with the node's own identity: a client certificate of system:node:NAME
    #[arg(long)]
    node_kubeconfig: PathBuf,
    /// Loopback network; the pods of the first set get 127.A.B.10, 127.A.B.11 and so on by their ordinals
    #[arg(long, value_name = "127.A.B")]
    network: String,
    /// Folder for logs and volumes
    #[arg(long)]
    dir: PathBuf,
    /// Program for the containers of this name, for instance etcd=/usr/bin/etcd
    #[arg(long, value_name = "etcd=PATH", value_parser = etcd)]
    program: PathBuf,
    /// Only run pods of this namespace (may be repeated)
    #[arg(long = "namespace")]
    namespaces: Vec<String>,
    /// Bind pods and create volumes, if no scheduler and no provisioner runs
    #[arg(long)]
    alone: bool,
}

fn etcd(text: &str) -> Result<PathBuf, String> {
    text.strip_prefix("etcd=")
        .map(PathBuf::from)
        .ok_or_else(|| String::from("unsupported program; use etcd=PATH"))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> std::io::Result<()> {
    let Arguments { kubeconfig, node, node_kubeconfig, network, dir, program, namespaces, alone } =
        Arguments::parse();
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let _node = ProcessNode::start(Settings {
        admin_kubeconfig: kubeconfig,
        nodes: vec![NodeIdentity { name: node, kubeconfig: node_kubeconfig }],
        namespaces,
        addresses: Addresses::new(&network),
        dir,
        etcd: program,
        etcd_flags: Vec::new(),
        alone,
    });
    tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
