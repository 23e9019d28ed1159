//! Follows the configuration file. The last good one is served, whatever becomes of the file.
//!
//! The file is polled for its content: the kubelet swaps a mounted directory by a symbolic link, editors replace files,
//! and each way a watch of the file's inode would miss some of them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

use super::Config;

/// How often the file is looked at.
pub(super) struct Pace {
    /// Pause between two looks.
    pub(super) poll: Duration,
    /// A file must keep its content for this long before it is read: whoever writes it may not be done.
    pub(super) settle: Duration,
}

/// The kubelet itself takes up to a minute to bring a changed `ConfigMap`.
pub(super) const PACE: Pace = Pace { poll: Duration::from_millis(500), settle: Duration::from_millis(100) };

/// Longest that one read may take: a file server may be gone.
const READ_LIMIT: Duration = Duration::from_secs(5);

/// The configuration that counts now; it may be another one a moment later.
pub type Live = watch::Receiver<Arc<Config>>;

/// Counts reloads.
#[derive(Clone, Default)]
pub struct ReloadMetrics {
    reloads: Family<ResultLabel, Counter>,
    /// Whether the file as it is now is in force.
    in_force: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// Reads the file whenever its content has changed from `seen`, for as long as somebody wants its configuration.
pub async fn follow(path: PathBuf, seen: String, told: watch::Sender<Arc<Config>>, metrics: ReloadMetrics) {
    follow_at(PACE, path, seen, told, metrics).await;
}

pub(super) async fn follow_at(
    pace: Pace,
    path: PathBuf,
    mut seen: String,
    told: watch::Sender<Arc<Config>>,
    metrics: ReloadMetrics,
) {
    while !told.is_closed() {
        sleep(pace.poll).await;
        let Some(text) = read(&path).await.filter(|text| *text != seen) else { continue };
        sleep(pace.settle).await;
        if read(&path).await.as_ref() != Some(&text) {
            continue;
        }
        match Config::read(&text) {
            Ok(config) => {
                tracing::info!(path = %path.display(), "configuration reloaded");
                told.send_replace(Arc::new(config));
                metrics.count("success");
            }
            Err(mistakes) => {
                for mistake in &mistakes {
                    tracing::error!(path = %path.display(), %mistake, "configuration not reloaded");
                }
                metrics.count("failure");
            }
        }
        seen = text;
    }
}

/// The file's text; a file that is gone or no text reads as an empty one, which is a mistake.
async fn read(path: &std::path::Path) -> Option<String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || std::fs::read_to_string(path).unwrap_or_default());
    timeout(READ_LIMIT, read).await.ok()?.ok()
}

// === impl ReloadMetrics ===

impl ReloadMetrics {
    /// Registers what is counted, with both results at zero. A process does not start with a bad file.
    pub fn register(&self, registry: &mut Registry) {
        self.in_force.set(1);
        registry.register(
            "config_in_force",
            "Whether the configuration file as it is now is in force: 0 while an older one is, because this one is bad",
            self.in_force.clone(),
        );
        registry.register("config_reloads", "Changes of the configuration file", self.reloads.clone());
        for result in ["success", "failure"] {
            drop(self.reloads.get_or_create(&ResultLabel { result }));
        }
    }

    fn count(&self, result: &'static str) {
        self.in_force.set(i64::from(result == "success"));
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }
}
