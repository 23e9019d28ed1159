//! Hot reload of the configuration file. While the file is invalid or missing, the last valid configuration remains
//! active.
//!
//! The content of the file is polled: the kubelet replaces a mounted directory through a symbolic link, and editors
//! replace files. A watch of the inode would miss some of these changes.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::Context;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use etcd_guard_inject::config::Config;

/// The intervals of polling.
pub(crate) struct Intervals {
    /// Pause between two reads of the file.
    pub(crate) poll: Duration,
    /// Time for which new content must be unchanged before it is parsed, because a write may be in progress.
    pub(crate) settle: Duration,
}

/// The intervals outside of tests. The kubelet itself takes up to a minute to update a mounted `ConfigMap`.
pub(crate) const DEFAULT_INTERVALS: Intervals =
    Intervals { poll: Duration::from_millis(500), settle: Duration::from_millis(100) };

/// Timeout of one read. The file may be on a file server that does not respond.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The active configuration, which changes when the file is reloaded.
pub(crate) type LiveConfig = watch::Receiver<Arc<Config>>;

/// Metrics of the reloads.
#[derive(Clone, Default)]
pub struct ReloadMetrics {
    reloads: Family<ResultLabel, Counter>,
    /// 1 if the current content of the file is in effect.
    in_force: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Reads the configuration of `--config` and its text, or returns the default one if the flag is absent.
pub(crate) fn load(file: Option<&Path>) -> anyhow::Result<(Config, String)> {
    let Some(file) = file else { return Ok((Config::default(), String::new())) };
    let text = std::fs::read_to_string(file).with_context(|| format!("--config {}", file.display()))?;
    match Config::read(&text) {
        Ok(config) => Ok((config, text)),
        Err(diagnostics) => {
            for diagnostic in &diagnostics {
                tracing::error!("{}", diagnostic.in_file(file));
            }
            let plural = if diagnostics.len() == 1 { "" } else { "s" };
            anyhow::bail!("--config: {} has {} error{plural}", file.display(), diagnostics.len())
        }
    }
}

/// Reloads the file whenever its content differs from `loaded`, until all receivers of `sender` are dropped.
pub(crate) async fn follow(
    path: PathBuf,
    loaded: String,
    sender: watch::Sender<Arc<Config>>,
    metrics: ReloadMetrics,
) {
    follow_at(DEFAULT_INTERVALS, path, loaded, sender, metrics).await;
}

pub(crate) async fn follow_at(
    intervals: Intervals,
    path: PathBuf,
    mut loaded: String,
    sender: watch::Sender<Arc<Config>>,
    metrics: ReloadMetrics,
) {
    while !sender.is_closed() {
        sleep(intervals.poll).await;
        let Some(text) = read(&path).await.filter(|text| *text != loaded) else { continue };
        sleep(intervals.settle).await;
        if read(&path).await.as_ref() != Some(&text) {
            continue;
        }
        match Config::read(&text) {
            Ok(config) => {
                tracing::info!(path = %path.display(), "configuration reloaded");
                sender.send_replace(Arc::new(config));
                metrics.count("success");
            }
            Err(diagnostics) => {
                for diagnostic in &diagnostics {
                    tracing::error!(path = %path.display(), %diagnostic, "configuration not reloaded");
                }
                metrics.count("failure");
            }
        }
        loaded = text;
    }
}

/// Returns the text of the file. The text is empty, which is invalid, if the file is missing or not UTF-8.
async fn read(path: &std::path::Path) -> Option<String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path).unwrap_or_default());
    timeout(READ_TIMEOUT, read).await.ok()?.ok()
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    /// Registers the metrics, with both results at zero. The initial file is valid: a process with an invalid one does
    /// not start.
    pub fn register(&self, registry: &mut Registry) {
        self.in_force.set(1);
        registry.register(
            "config_in_force",
            "1 if the current content of the configuration file is in effect, 0 if it is invalid and an older one is in effect",
            self.in_force.clone(),
        );
        registry.register("config_reloads", "Reloads of the configuration file", self.reloads.clone());
        for result in ["success", "failure"] {
            drop(self.reloads.get_or_create(&ResultLabel { result }));
        }
    }

    fn count(&self, result: &'static str) {
        self.in_force.set(i64::from(result == "success"));
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }
}

#[cfg(test)]
mod tests;
