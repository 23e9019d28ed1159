//! `etcd-guard unregister`: takes the webhook configurations away, so that nothing asks the guard any more.

use std::path::PathBuf;

use clap::Args;

use super::client::{client, run};
use crate::{certificates::own_configurations, k8s::webhooks::Configurations};

/// Delete the guard's webhook configurations
#[derive(Debug, Args)]
pub(super) struct Unregister {
    /// How to reach the apiserver; by default $KUBECONFIG, then the pod's service account
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

// === impl Unregister ===

impl Unregister {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(async {
            let configurations = Configurations::new(client(self.kubeconfig).await?);
            for name in own_configurations() {
                let deleted = configurations.delete(&name).await?;
                tracing::info!(configuration = %name, "{}", if deleted { "deleted" } else { "was not there" });
            }
            Ok(())
        })
    }
}
