//! Builds of Go programs into the cache, each once, also for several callers at the same time.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use super::{
    catalog::{Module, Program},
    search::{Found, Search, cached},
};
use crate::{
    cache::{self, Lock},
    log,
};

/// Limit for the build of another process. A cold build of the largest program takes about 3 minutes on 2 cores.
const OTHER_BUILD_TIMEOUT: Duration = Duration::from_secs(1800);

/// Interval between two lines of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// Interval at which the end of a build is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Builds a program, or waits for another process that builds it.
pub(super) fn build(search: &Search, program: &Program, module: &Module, version: &str) -> Result<Found> {
    let name = &program.name;
    if Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        bail!(
            "{name} must be built and the Go compiler is missing: install Go 1.26 or newer \
             (https://go.dev/doc/install) and put it on PATH"
        );
    }
    let target = cached(program, version)?;
    let file_name = format!("{}-{version}", program.executable);
    cache::directory("bin")?;
    let log_file = cache::directory("log")?.join(format!("{file_name}.log"));
    let lock_file = cache::directory("lock")?.join(&file_name);
    let waiting = format!("{name} {version} is being built by another process; waiting");
    let _lock = Lock::acquire(&lock_file, &waiting, OTHER_BUILD_TIMEOUT)?;
    if !target.exists() {
        remove_partial_builds(&target)?;
        compile(search, program, module, version, &target, &log_file)?;
    }
    Ok(Found { path: target, origin: "a new build" })
}

fn compile(
    search: &Search,
    program: &Program,
    module: &Module,
    version: &str,
    target: &Path,
    log_file: &Path,
) -> Result<()> {
    let name = &program.name;
    log::info(format_args!("building {name} {version} (once; log: {})", log_file.display()));
    let started = Instant::now();
    let partial = target.with_file_name(format!(
        "{}.{}",
        target.file_name().context("no file name")?.display(),
        std::process::id()
    ));
    let log = File::create(log_file).with_context(|| format!("cannot write {}", log_file.display()))?;
    // The build ends when this process is killed.
    let mut build = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "go", "build", "-v", "-mod=readonly", "-trimpath", "-ldflags"])
        .arg(linker_flags(module, version))
        .arg("-o")
        .arg(&partial)
        .arg(module.package.map_or_else(|| String::from("."), |package| format!("{}{package}", module.path)))
        .current_dir(module.directory(&search.modules)?)
        .env("CGO_ENABLED", "0")
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start go build")?;
    let mut next_progress = PROGRESS_INTERVAL;
    let status = loop {
        if let Some(status) = build.try_wait()? {
            break status;
        }
        thread::sleep(POLL_INTERVAL);
        if started.elapsed() >= next_progress {
            let packages = fs::read_to_string(log_file).unwrap_or_default().lines().count();
            log::info(format_args!(
                "  still building {name}: {} s, {packages} packages compiled",
                next_progress.as_secs()
            ));
            next_progress += PROGRESS_INTERVAL;
        }
    };
    if !status.success() {
        // The file may be missing.
        let _ = fs::remove_file(&partial);
        log::tail(log_file);
        bail!("cannot build {name} {version}");
    }
    fs::rename(&partial, target).with_context(|| format!("cannot write {}", target.display()))?;
    log::info(format_args!("built {name} {version} in {} s", started.elapsed().as_secs()));
    Ok(())
}

/// Programs without a stamped version report v0.0.0, and kubectl and the kubelet derive version skew from it.
fn linker_flags(module: &Module, version: &str) -> String {
    let stamped = match module.path {
        "k8s.io/kubernetes" => Some("k8s.io/component-base/version.gitVersion"),
        "helm.sh/helm/v3" => Some("helm.sh/helm/v3/internal/version.version"),
        "helm.sh/helm/v4" => Some("helm.sh/helm/v4/internal/version.version"),
        _ => None,
    };
    stamped.map_or_else(|| String::from("-s -w"), |variable| format!("-s -w -X {variable}={version}"))
}

/// Removes the output of builds that were killed: the name of the target, a dot and a process id.
fn remove_partial_builds(target: &Path) -> Result<()> {
    let (Some(folder), Some(name)) = (target.parent(), target.file_name().and_then(|name| name.to_str()))
    else {
        return Ok(());
    };
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let suffix = path.file_name().and_then(|file| file.to_str()?.strip_prefix(name)?.strip_prefix('.'));
        if suffix.is_some_and(|id| id.parse::<u32>().is_ok()) {
            fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_builds_are_removed_and_other_versions_stay() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["etcd-v3.6.1", "etcd-v3.6.1.4711", "etcd-v3.6.16", "etcd-v3.6.1.log"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        remove_partial_builds(&directory.path().join("etcd-v3.6.1")).unwrap();
        let mut left: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["etcd-v3.6.1", "etcd-v3.6.1.log", "etcd-v3.6.16"]);
    }

    #[test]
    fn version_is_stamped_where_the_program_reports_it() {
        let module = |path| Module { directory: "", path, package: Some("") };
        assert!(linker_flags(&module("k8s.io/kubernetes"), "v1.34.3").ends_with("gitVersion=v1.34.3"));
        assert_eq!(linker_flags(&module("go.etcd.io/etcd"), "v3"), "-s -w");
    }
}
