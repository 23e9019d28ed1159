//! A node whose pods are processes, for people: runs the etcd of every pod that is bound to it on a loopback address of
//! its own, and plays the kubelet otherwise. `scripts/demo --loopback` shows the guard with it.
//!
//! Ends, with all of its processes, on SIGTERM or SIGINT.

use std::path::PathBuf;

use clap::Parser;
use support::process_node::{Addresses, NodeIdentity, ProcessNode, Settings};
use tokio::signal::unix::{SignalKind, signal};

#[allow(dead_code, unreachable_pub, reason = "shared with tests, which use more of it")]
#[allow(clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "written for tests")]
#[path = "support"]
mod support {
    pub mod api_client;
    pub mod child;
    pub mod freeze;
    pub mod http_client;
    pub mod process_node;
}

/// Runs pods as processes.
#[derive(Parser)]
struct Arguments {
    /// Of somebody who may make Node objects and read claims and volumes
    #[arg(long)]
    kubeconfig: PathBuf,
    /// The name of the node
    #[arg(long)]
    node: String,
    /// The node's own identity: a client certificate of system:node:NAME
    #[arg(long)]
    node_kubeconfig: PathBuf,
    /// Loopback network; the pods of the first set get 127.A.B.10, 127.A.B.11 and so on by their ordinals
    #[arg(long, value_name = "127.A.B")]
    network: String,
    /// Where to keep logs and volumes
    #[arg(long)]
    dir: PathBuf,
    /// The program to run for a container's, for instance etcd=/usr/bin/etcd
    #[arg(long, value_name = "etcd=PATH", value_parser = etcd)]
    program: PathBuf,
    /// Take pods of this namespace alone (may be repeated)
    #[arg(long = "namespace")]
    namespaces: Vec<String>,
    /// Bind pods and make volumes too, where no scheduler runs and nobody else makes volumes
    #[arg(long)]
    alone: bool,
}

fn etcd(text: &str) -> Result<PathBuf, String> {
    text.strip_prefix("etcd=")
        .map(PathBuf::from)
        .ok_or_else(|| String::from("only etcd can be run: etcd=PATH"))
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
        addresses: Addresses::on(&network),
        dir,
        etcd: program,
        etcd_flags: Vec::new(),
        alone,
    });
    tokio::select! { _ = term.recv() => {}, _ = interrupt.recv() => {} }
    Ok(())
}
