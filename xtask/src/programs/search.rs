//! Search for a program on the machine and in the cache.

use std::{
    env, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::Result;
use nix::unistd::{AccessFlags, access};

use super::{
    catalog::{self, CNI_PLUGIN, Program, Source},
    version,
};
use crate::cache;

/// Where to search.
pub(super) struct Search {
    /// Directory of the Go modules.
    pub(super) modules: PathBuf,
    /// Ignore `KUBEBUILDER_ASSETS`, and `PATH` for programs that can be built.
    pub(super) own_build: bool,
}

/// A program and its origin, as the log names it.
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) origin: &'static str,
}

impl Search {
    /// Finds a program without building or installing it.
    pub(super) fn find(&self, program: &Program) -> Result<Option<Found>> {
        if program.name == "cni-plugins" {
            let path = PathBuf::from(CNI_PLUGIN);
            return Ok(is_executable(&path).then_some(Found { path, origin: "Debian" }));
        }
        if let Some(path) = self.in_assets(program) {
            return Ok(Some(Found { path, origin: "KUBEBUILDER_ASSETS" }));
        }
        let is_debian = matches!(program.source, Source::Debian { .. });
        if (is_debian || !self.own_build)
            && let Some(path) = on_path(program)
        {
            return Ok(Some(Found { path, origin: "PATH" }));
        }
        let Source::Go(module) = &program.source else { return Ok(None) };
        let path = cached(program, &version::required(&self.modules, module)?)?;
        Ok(is_executable(&path).then_some(Found { path, origin: "the cache" }))
    }

    fn in_assets(&self, program: &Program) -> Option<PathBuf> {
        let assets =
            env::var_os("KUBEBUILDER_ASSETS").filter(|assets| !assets.is_empty() && !self.own_build)?;
        let path = Path::new(&assets).join(program.executable);
        (is_executable(&path) && fits(&path, program)).then(|| fs::canonicalize(&path).unwrap_or(path))
    }
}

/// Path of a build in the cache.
pub(super) fn cached(program: &Program, version: &str) -> Result<PathBuf> {
    Ok(cache::root()?.join("bin").join(format!("{}-{version}", program.executable)))
}

/// Returns the first fitting program on `PATH`.
fn on_path(program: &Program) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let mut previous = None;
    env::split_paths(&path).map(|directory| directory.join(program.executable)).find(|candidate| {
        // Where /bin is a link to /usr/bin, PATH has every program twice.
        let identity = fs::metadata(candidate).ok().map(|data| (data.dev(), data.ino()));
        if identity.is_none() || identity == previous || !is_executable(candidate) {
            return false;
        }
        previous = identity;
        fits(candidate, program)
    })
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, AccessFlags::X_OK).is_ok()
}

/// Whether a program of the machine can be used.
fn fits(path: &Path, program: &Program) -> bool {
    match program.name.as_str() {
        // A program of the machine with such a name is another one, for instance the command line tool of a server.
        "cert-manager" | "gatekeeper" | "go-webhook" | "kyverno" => return false,
        // It runs in images that hold no libraries.
        "busybox" => return is_static(path),
        "protoc" => return has_includes(path),
        _ => {}
    }
    match &program.source {
        Source::Debian { .. } => true,
        Source::Go(_) => version::reported(path, &program.name)
            .zip(catalog::kubernetes_minor().ok())
            .is_some_and(|(version, kubernetes)| version::fits(&program.name, &version, kubernetes)),
    }
}

fn is_static(path: &Path) -> bool {
    let linked = Command::new("ldd").arg(path).stdout(Stdio::null()).stderr(Stdio::null()).status();
    linked.is_ok_and(|status| !status.success())
}

/// Whether the files that every .proto file imports are installed beside the compiler.
fn has_includes(protoc: &Path) -> bool {
    let is_set = env::var_os("PROTOC_INCLUDE").is_some_and(|folder| !folder.is_empty());
    let are_beside = |protoc: &Path| {
        let root = protoc.parent().and_then(Path::parent);
        root.is_some_and(|root| root.join("include/google/protobuf/descriptor.proto").exists())
    };
    // A link to the compiler can be in a folder without the files.
    is_set || are_beside(protoc) || protoc.canonicalize().is_ok_and(|target| are_beside(&target))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn finds_includes_beside_the_target_of_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("usr/bin/protoc"), folder.path().join("local/bin/protoc"));
        for file in [&real, &link, &folder.path().join("usr/include/google/protobuf/descriptor.proto")] {
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            if file != &link {
                std::fs::write(file, "").unwrap();
            }
        }
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert!(has_includes(&real) && has_includes(&link));
        std::fs::remove_file(&link).unwrap();
        std::fs::write(&link, "").unwrap();
        assert!(!has_includes(&link), "a compiler of its own");
    }

    fn search(modules: &str) -> Search {
        Search { modules: PathBuf::from(modules), own_build: false }
    }

    #[test]
    fn programs_of_the_machine_are_found_on_path() {
        let found = search("/nonexistent").find(&catalog::program("ip").unwrap()).unwrap();
        assert!(found.is_none_or(|found| found.origin == "PATH" && found.path.is_absolute()));
    }

    #[test]
    fn version_decides_whether_a_program_fits() {
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("etcd");
        fs::write(&script, "#!/bin/sh\necho etcd Version: 3.5.1\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(fits(&script, &catalog::program("etcd-3.5").unwrap()));
        assert!(!fits(&script, &catalog::program("etcd-3.6").unwrap()));
    }

    #[test]
    fn script_is_not_a_static_busybox_with_libraries() {
        assert!(!is_static(Path::new("/bin/sh")));
    }
}
