//! The last good configuration is served, whatever becomes of the file.

use std::{os::unix::fs::symlink, path::Path, sync::Arc, time::Duration};

use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{sync::watch, time::sleep};

use super::super::{Config, Live, ReloadMetrics, follow};

const WAIT: Duration = Duration::from_secs(10);

struct Followed {
    live: Live,
    registry: Registry,
}

fn root(root: &str) -> String {
    format!("apiVersion: etcd-guard.io/v1alpha1\nlxcfs: {{root: {root}}}\n")
}

fn start(file: &Path) -> Followed {
    let text = std::fs::read_to_string(file).unwrap();
    let (told, live) = watch::channel(Arc::new(Config::read(&text).unwrap()));
    let (metrics, mut registry) = (ReloadMetrics::default(), Registry::default());
    metrics.register(&mut registry);
    tokio::spawn(follow(file.to_owned(), text, told, metrics));
    Followed { live, registry }
}

impl Followed {
    fn root(&self) -> String {
        self.live.borrow().lxcfs.root.clone()
    }

    fn counted(&self, result: &str) -> u64 {
        let mut page = String::new();
        encode(&mut page, &self.registry).unwrap();
        let line = format!("config_reloads_total{{result=\"{result}\"}} ");
        page.lines().find_map(|it| it.strip_prefix(&line)).unwrap().parse().unwrap()
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let waited = tokio::time::timeout(WAIT, async {
            while !is_so(self) {
                sleep(Duration::from_millis(20)).await;
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
async fn a_storm_of_two_hundred_changes_ends_with_the_last_good_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config.yaml");
    std::fs::write(&file, root("/start")).unwrap();
    let followed = start(&file);
    for turn in 0..200 {
        let text = if turn % 3 == 0 { String::from("lxcfs: [") } else { root(&format!("/{turn}")) };
        std::fs::write(&file, text).unwrap();
        assert!(followed.root().starts_with('/'));
        sleep(Duration::from_millis(5)).await;
    }
    std::fs::write(&file, root("/end")).unwrap();
    followed.until(|it| it.root() == "/end").await;
}
