//! The last valid configuration stays in effect while the file is invalid or missing.

use std::{os::unix::fs::symlink, path::Path, sync::Arc, time::Duration};

use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{sync::watch, time::sleep};

use crate::reload::{DEFAULT_INTERVALS, Intervals, LiveConfig, ReloadMetrics, follow_at};
use etcd_guard_inject::config::Config;

const TIMEOUT: Duration = Duration::from_secs(10);

struct Followed {
    live: LiveConfig,
    registry: Registry,
}

fn root(root: &str) -> String {
    format!("apiVersion: etcd-guard.io/v1alpha1\nlxcfs: {{root: {root}}}\n")
}

fn start(file: &Path) -> Followed {
    start_with(DEFAULT_INTERVALS, file)
}

fn start_with(intervals: Intervals, file: &Path) -> Followed {
    let text = std::fs::read_to_string(file).unwrap();
    let (sender, live) = watch::channel(Arc::new(Config::read(&text).unwrap()));
    let (metrics, mut registry) = (ReloadMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    tokio::spawn(follow_at(intervals, file.to_owned(), text, sender, metrics));
    Followed { live, registry }
}

impl Followed {
    fn root(&self) -> String {
        self.live.borrow().lxcfs.root.clone()
    }

    fn reloads(&self, result: &str) -> u64 {
        self.metric(&format!("config_reloads_total{{result=\"{result}\"}} "))
    }

    fn metric(&self, name: &str) -> u64 {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        page.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse().unwrap()
    }

    async fn wait_until(&self, condition: impl Fn(&Self) -> bool) {
        let result = tokio::time::timeout(TIMEOUT, async {
            while !condition(self) {
                sleep(Duration::from_millis(2)).await;
            }
        });
        result.await.expect("in time");
    }
}

#[tokio::test]
async fn counts_invalid_truncated_and_missing_files() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, root("/a")).unwrap();
    let followed = start(&file);
    let cut = root("/b");
    for (count, bad) in (1..).zip(["lxcfs: [", &cut[..cut.len() - 4], ""]) {
        std::fs::write(&file, bad).unwrap();
        followed.wait_until(|followed| followed.reloads("failure") == count).await;
        assert_eq!(followed.root(), "/a");
    }
    std::fs::remove_file(&file).unwrap();
    sleep(Duration::from_millis(700)).await;
    std::fs::write(&file, root("/c")).unwrap();
    followed.wait_until(|followed| followed.root() == "/c").await;
    assert_eq!(
        (followed.reloads("success"), followed.reloads("failure")),
        (1, 3),
        "a missing file is read as an empty one"
    );
}

#[tokio::test]
async fn follows_symbolic_links_of_mounted_config_map() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for (version, path) in [("..1", "/one"), ("..2", "/two")] {
        std::fs::create_dir(at(version)).unwrap();
        std::fs::write(at(version).join("config.yaml"), root(path)).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/config.yaml", at("config.yaml")).unwrap();
    let followed = start(&at("config.yaml"));
    symlink("..2", at("..data_tmp")).unwrap();
    std::fs::rename(at("..data_tmp"), at("..data")).unwrap();
    followed.wait_until(|followed| followed.root() == "/two").await;
}

#[tokio::test]
async fn counts_each_of_two_hundred_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, root("/start")).unwrap();
    let often = Intervals { poll: Duration::from_millis(2), settle: Duration::from_millis(1) };
    let followed = start_with(often, &file);
    let (mut successes, mut failures, mut last_valid) = (0, 0, String::from("/start"));
    for turn in 0..200 {
        let valid = root(&format!("/{turn}"));
        let (text, is_valid) = match turn % 4 {
            1 => (format!("{valid}lxcfs: [ # {turn}"), false),
            3 => (valid[..valid.len() - 3].to_owned(), false),
            _ => (valid, true),
        };
        // The rename is atomic: no read returns a partial file.
        std::fs::write(folder.path().join("next"), text).unwrap();
        std::fs::rename(folder.path().join("next"), &file).unwrap();
        if is_valid {
            successes += 1;
            last_valid = format!("/{turn}");
        } else {
            failures += 1;
        }
        followed
            .wait_until(|followed| followed.reloads("success") + followed.reloads("failure") == turn + 1)
            .await;
        assert_eq!((followed.reloads("success"), followed.reloads("failure")), (successes, failures));
        assert_eq!(followed.root(), last_valid, "after {turn}");
        assert_eq!(followed.metric("config_in_force "), u64::from(is_valid));
    }
    assert_eq!((successes, failures), (100, 100));
}
