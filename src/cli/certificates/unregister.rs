//! `etcd-guard unregister`: deletes the webhook configurations, so that the API server stops calling the guard.

use std::path::PathBuf;

use clap::Args;

use super::kube_client::{client, run};
use crate::{certificates::shipped_configurations, k8s::webhooks::Configurations};

/// Delete the guard's webhook configurations
#[derive(Debug, Args)]
pub(super) struct Unregister {
    /// The kubeconfig file; by default $KUBECONFIG, then the service account of the pod
    #[arg(long, env = "ETCD_GUARD_KUBECONFIG")]
    kubeconfig: Option<PathBuf>,
}

// === impl Unregister ===

impl Unregister {
    pub(super) fn run(self) -> anyhow::Result<()> {
        run(async {
            let configurations = Configurations::new(client(self.kubeconfig).await?);
            for name in shipped_configurations() {
                let deleted = configurations.delete(&name).await?;
                tracing::info!(configuration = %name, "{}", if deleted { "deleted" } else { "not found" });
            }
            Ok(())
        })
    }
}
