//! The last good configuration is served, whatever becomes of the file.

use std::{os::unix::fs::symlink, path::Path, sync::Arc, time::Duration};

use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{sync::watch, time::sleep};

use super::super::{
    Config, Live, ReloadMetrics,
    reload::{PACE, Pace, follow_at},
};

const WAIT: Duration = Duration::from_secs(10);

struct Followed {
    live: Live,
    registry: Registry,
}

fn root(root: &str) -> String {
    format!("apiVersion: etcd-guard.io/v1alpha1\nlxcfs: {{root: {root}}}\n")
}

fn start(file: &Path) -> Followed {
    start_at(PACE, file)
}

fn start_at(pace: Pace, file: &Path) -> Followed {
    let text = std::fs::read_to_string(file).unwrap();
    let (told, live) = watch::channel(Arc::new(Config::read(&text).unwrap()));
    let (metrics, mut registry) = (ReloadMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    tokio::spawn(follow_at(pace, file.to_owned(), text, told, metrics));
    Followed { live, registry }
}

impl Followed {
    fn root(&self) -> String {
        self.live.borrow().lxcfs.root.clone()
    }

    fn counted(&self, result: &str) -> u64 {
        self.shown(&format!("config_reloads_total{{result=\"{result}\"}} "))
    }

    fn shown(&self, metric: &str) -> u64 {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        page.lines().find_map(|it| it.strip_prefix(metric)).unwrap().parse().unwrap()
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(WAIT, async {
            while !is_so(self) {
                sleep(Duration::from_millis(2)).await;
            }
        });
        waited.await.expect("in time");
    }
}

#[tokio::test]
async fn a_bad_a_truncated_and_a_missing_file_are_counted_and_the_last_good_one_serves_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, root("/a")).unwrap();
    let followed = start(&file);
    let cut = root("/b");
    for (count, bad) in (1..).zip(["lxcfs: [", &cut[..cut.len() - 4], ""]) {
        std::fs::write(&file, bad).unwrap();
        followed.until(|it| it.counted("failure") == count).await;
        assert_eq!(followed.root(), "/a");
    }
    std::fs::remove_file(&file).unwrap();
    sleep(Duration::from_millis(700)).await;
    std::fs::write(&file, root("/c")).unwrap();
    followed.until(|it| it.root() == "/c").await;
    assert_eq!((followed.counted("success"), followed.counted("failure")), (1, 3), "gone reads as empty");
}

#[tokio::test]
async fn a_mounted_config_map_is_followed_through_its_symbolic_links() {
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
    followed.until(|it| it.root() == "/two").await;
}

#[tokio::test]
async fn of_two_hundred_changes_each_is_counted_and_after_each_the_last_good_one_serves() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, root("/start")).unwrap();
    let often = Pace { poll: Duration::from_millis(2), settle: Duration::from_millis(1) };
    let followed = start_at(often, &file);
    let (mut successes, mut failures, mut last_good) = (0, 0, String::from("/start"));
    for turn in 0..200 {
        let good = root(&format!("/{turn}"));
        let (text, is_good) = match turn % 4 {
            1 => (format!("{good}lxcfs: [ # {turn}"), false),
            3 => (good[..good.len() - 3].to_owned(), false),
            _ => (good, true),
        };
        // Renamed, so that no half of it is ever seen.
        std::fs::write(folder.path().join("next"), text).unwrap();
        std::fs::rename(folder.path().join("next"), &file).unwrap();
        if is_good {
            successes += 1;
            last_good = format!("/{turn}");
        } else {
            failures += 1;
        }
        followed.until(|it| it.counted("success") + it.counted("failure") == turn + 1).await;
        assert_eq!((followed.counted("success"), followed.counted("failure")), (successes, failures));
        assert_eq!(followed.root(), last_good, "after {turn}");
        assert_eq!(followed.shown("config_in_force "), u64::from(is_good));
    }
    assert_eq!((successes, failures), (100, 100));
}
